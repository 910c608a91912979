// What the pages use of d3; the bundle has this as the global `d3`.
export { extent, max, min, sum } from "d3-array";
export { axisBottom, axisLeft } from "d3-axis";
export { scaleBand, scaleLinear, scaleLog, scaleSqrt } from "d3-scale";
export { select } from "d3-selection";
export { line, symbol, symbolCircle, symbolDiamond, symbolSquare, symbolTriangle } from "d3-shape";
export { zoom, zoomIdentity, zoomTransform } from "d3-zoom";
