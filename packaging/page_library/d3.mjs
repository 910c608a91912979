// What the pages use of d3; the bundle has this as the global `d3`.
export { bisectCenter, bisector, extent, group, max, min, range, sum } from "d3-array";
export { axisBottom, axisLeft, axisTop } from "d3-axis";
export { drag } from "d3-drag";
export { format } from "d3-format";
export { scaleBand, scaleLinear, scaleLog, scalePoint, scaleSqrt } from "d3-scale";
export { create, pointer, select, selectAll } from "d3-selection";
export { area, curveStepAfter, line, stack, symbol, symbolCircle, symbolDiamond, symbolSquare, symbolTriangle } from "d3-shape";
export { zoom, zoomIdentity, zoomTransform } from "d3-zoom";
