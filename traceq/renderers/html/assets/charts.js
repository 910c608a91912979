// The charts of both pages, drawn from the JSON in their figures.
"use strict";

const ROW = 44;

/** Estimates with their intervals, one row per arm: zero, the band below the threshold, and the numbers as text. */
charts.intervals = function (figure, data) {
  drawAtWidth(figure, (width, plot) => {
    const left = 8, right = 8, top = 8, height = top + data.rows.length * ROW + 40;
    const ends = data.rows.flatMap((row) => [row.low, row.high, -row.threshold, row.threshold]);
    const x = d3.scaleLinear(d3.extent([0, ...ends]), [left, width - right]).nice();
    const svg = drawing(plot, width, height, data.name);
    const rows = svg.selectAll("g.row").data(data.rows).join("g").attr("transform", (_, index) => `translate(0,${top + index * ROW})`);
    rows.append("line").attr("x1", (row) => x(row.low)).attr("x2", (row) => x(row.high)).attr("y1", ROW / 2).attr("y2", ROW / 2).style("stroke", "var(--ink)").attr("stroke-width", 3);
    telling(rows.append("circle").attr("cx", (row) => x(row.value)).attr("cy", ROW / 2).attr("r", 6), (row) => row.label);
    svg.append("g").attr("transform", `translate(0,${height - 32})`).call(d3.axisBottom(x).ticks(width / 90));
  });
};
