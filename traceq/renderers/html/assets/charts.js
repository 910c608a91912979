// The charts of both pages, drawn from the JSON in their figures. Lengths are in CSS pixels, times in ns.
"use strict";

const AXIS = 44;
const direction = (value) => value > 0 ? "costs" : value < 0 ? "saves" : "even";
const arrow = (value) => value > 0 ? "▲ " : value < 0 ? "▼ " : "";

/** Estimates with their intervals, one row per arm: zero, the band below the threshold, and the numbers as text. */
charts.intervals = function (figure, data) {
  drawAtWidth(figure, (width, plot) => {
    const row = 58, top = 22, left = 10, right = width - 10;
    const height = top + data.rows.length * row;
    const ends = data.rows.flatMap(({ low, high, threshold }) => [low, high, -threshold, threshold]);
    const span = d3.max(ends) - d3.min(ends);
    const x = d3.scaleLinear([d3.min(ends) - span * 0.04, d3.max(ends) + span * 0.04], [left, right]);
    const svg = drawing(plot, width, height + AXIS, data.name);
    svg.append("g").selectAll("rect").data(data.rows).join("rect").attr("class", "band").attr("height", row)
      .attr("y", (_, index) => top + index * row).attr("x", ({ threshold }) => x(-threshold))
      .attr("width", ({ threshold }) => Math.max(1, x(threshold) - x(-threshold)));
    const shown = d3.scaleLinear(x.domain().map((ns) => ns / data.per), x.range());
    axisBelow(svg, shown, { y: height, height: height - top, width, title: data.unit });
    const rows = svg.selectAll("g.row").data(data.rows).join("g").attr("class", "row")
      .attr("transform", (_, index) => `translate(0,${top + index * row})`);
    svg.append("text").attr("class", "side").attr("x", left).attr("y", 13).text(data.faster);
    svg.append("text").attr("class", "side").attr("x", right).attr("y", 13).attr("text-anchor", "end").text(data.slower);
    const y = 40;
    rows.append("line").attr("class", "interval").attr("x1", ({ low }) => x(low)).attr("x2", ({ high }) => x(high))
      .attr("y1", y).attr("y2", y);
    for (const end of ["low", "high"]) {
      rows.append("line").attr("class", "interval").attr("x1", (datum) => x(datum[end])).attr("x2", (datum) => x(datum[end]))
        .attr("y1", y - 6).attr("y2", y + 6);
    }
    rows.append("circle").attr("class", ({ colour }) => `estimate ${colour}`).attr("cy", y).attr("r", 7)
      .attr("cx", ({ value }) => x(value));
    rows.append("text").attr("class", "name").attr("x", left).attr("y", 22)
      .text((datum) => fitted(datum.name, width * 0.5));
    rows.append("text").attr("class", "value").attr("x", right).attr("y", 22).attr("text-anchor", "end")
      .text((datum) => fitted(`${arrow(datum.value)}${datum.text}`, besideName(datum.name, width)));
    telling(rows.append("rect").attr("class", "hover").attr("width", width).attr("height", row), ({ label }) => label);
  });
};

/** Room for a value on the line of a name. */
function besideName(name, width) {
  return Math.max(width * 0.46, width - textWidth(name) - 32);
}

/** How the delta adds up: each bar starts where the one above ends; the last is the total. */
charts.waterfall = function (figure, data) {
  drawAtWidth(figure, (width, plot) => {
    legend(plot, [
      { colour: "var(--costs)", title: "costs time", symbol: d3.symbolTriangle },
      { colour: "var(--saves)", title: "saves time", symbol: { draw: (context, size) => drawDown(context, size) } },
      { colour: "var(--sum)", title: "all together" },
    ]);
    const texts = data.rows.map((row) => arrow(row.delta) + row.text);
    const room = d3.max(texts, (text) => textWidth(text, 13, 600)) + 14;
    const layout = rowLayout(width, data.rows.map(({ title }) => title), { right: 4 });
    const svg = drawing(plot, width, layout.size + AXIS, data.name);
    const ends = data.rows.flatMap(({ from, to }) => [from, to]);
    const x = d3.scaleLinear([Math.min(0, d3.min(ends)), Math.max(0, d3.max(ends))], [layout.left + room, layout.right - room]);
    axisBelow(svg, d3.scaleLinear(x.domain().map((ns) => ns / data.per), x.range()),
      { y: layout.size, height: layout.size, width: x.range()[1] - x.range()[0], title: data.unit });
    const rows = svg.selectAll("g.row").data(data.rows).join("g").attr("class", ({ isSum }) => isSum ? "row sum" : "row")
      .attr("transform", (_, index) => `translate(0,${index * layout.height})`);
    rowNames(rows, layout, width, ({ title }) => title);
    rows.filter((_, index) => index < data.rows.length - 1).append("line").attr("class", "joint")
      .attr("x1", ({ to }) => x(to)).attr("x2", ({ to }) => x(to))
      .attr("y1", layout.top).attr("y2", layout.top + layout.height + layout.bar);
    rows.append("rect").attr("class", (row) => `bar ${row.isSum ? "sum" : direction(row.delta)}`)
      .attr("x", ({ from, to }) => x(Math.min(from, to))).attr("width", ({ from, to }) => Math.max(1.5, Math.abs(x(to) - x(from))))
      .attr("y", layout.top).attr("height", layout.bar).attr("rx", 1.5);
    rows.append("text").attr("class", "value").attr("y", layout.top + layout.bar / 2).attr("dy", "0.35em")
      .attr("text-anchor", ({ delta }) => delta < 0 ? "end" : "start")
      .attr("x", ({ from, to, delta }) => delta < 0 ? x(Math.min(from, to)) - 6 : x(Math.max(from, to)) + 6)
      .text((_, index) => texts[index]);
    telling(rows.append("rect").attr("class", "hover").attr("width", width).attr("height", layout.height), ({ label }) => label);
  });
};

function drawDown(context, size) {
  const half = Math.sqrt(size / (Math.sqrt(3) * 3));
  context.moveTo(0, half * 2);
  context.lineTo(-Math.sqrt(3) * half, -half);
  context.lineTo(Math.sqrt(3) * half, -half);
  context.closePath();
}

/** Every pair of unprofiled steps in the order in which they ran: both arms, told apart by shape, joined by a line. */
charts.pairs = function (figure, data) {
  const arms = [
    { key: 0, title: data.a, colour: "var(--arm-a)", symbol: d3.symbolCircle, hollow: true },
    { key: 1, title: data.b, colour: "var(--arm-b)", symbol: d3.symbolDiamond },
  ];
  drawAtWidth(figure, (width, plot) => {
    legend(plot, arms);
    const left = 52, right = width - 12, top = 10, bottom = 230;
    const x = d3.scaleLinear([1, Math.max(2, data.pairs.at(-1)[0])], [left + 10, right - 6]);
    const y = d3.scaleLinear(data.range.map((ns) => ns / data.per), [bottom, top]).nice(5);
    const svg = drawing(plot, width, bottom + AXIS, data.name);
    axisBelow(svg, x, { y: bottom + 6, height: 0, width: right - left, title: data.across });
    axisLeft(svg, y, { left, right, title: data.unit });
    const groups = svg.append("g").selectAll("g").data(data.pairs).join("g").attr("class", "pair")
      .attr("transform", ([number]) => `translate(${x(number)},0)`);
    const half = Math.min(3, (right - left) / data.pairs.length / 4);
    const place = (isB, bSecond) => (isB === !!bSecond ? half : -half); // the first half of a pair lies left
    groups.append("line").attr("class", "joint")
      .attr("x1", ([, , , second]) => place(false, second)).attr("x2", ([, , , second]) => place(true, second))
      .attr("y1", ([, a]) => y(a / data.per)).attr("y2", ([, , b]) => y(b / data.per));
    const size = data.pairs.length > 300 ? 12 : data.pairs.length > 80 ? 26 : 44;
    for (const { key, colour, symbol, hollow } of arms) {
      groups.append("path").attr("d", d3.symbol(symbol, size)()).style("stroke", colour).attr("stroke-width", 1.5)
        .style("fill", hollow ? "var(--back)" : colour)
        .attr("transform", (pair) => `translate(${place(!!key, pair[3])},${y(pair[1 + key] / data.per)})`);
    }
    const reach = Math.max(4, (right - left) / data.pairs.length);
    telling(groups.append("rect").attr("class", "hover").attr("x", -reach / 2).attr("width", reach).attr("y", top).attr("height", bottom - top),
      ([number, a, b, second]) => `pair ${number}: ${second ? `${data.a}, then ${data.b}` : `${data.b}, then ${data.a}`}\n`
        + `${data.a}: ${duration(a)}\n${data.b}: ${duration(b)} (${signed(b - a)})`);
  });
};

/** An axis of numbers at the left, with its unit above and lines behind the marks. */
function axisLeft(svg, scale, { left, right, title, format = plainNumber }) {
  const axis = svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).attr("aria-hidden", "true")
    .call(d3.axisLeft(scale).ticks(5).tickFormat(format).tickSizeOuter(0).tickPadding(6));
  axis.select(".domain").remove();
  axis.selectAll(".tick line").attr("x2", right - left);
  axis.append("text").attr("class", "title").attr("x", 6).attr("y", d3.min(scale.range()) + 2).attr("text-anchor", "start").text(title);
}

/** Bars of one or more categories, one per row, with the total of the row at their end. */
charts.bars = function (figure, data) {
  drawAtWidth(figure, (width, plot) => {
    if (data.categories.length > 1) {
      legend(plot, data.categories.map(({ key, title }) => ({ colour: categoryColour(key), title })));
    }
    const room = d3.max(data.rows, ({ text }) => textWidth(text, 13, 600)) + 12;
    const layout = rowLayout(width, data.rows.map(({ title }) => title));
    const svg = drawing(plot, width, layout.size + AXIS, data.name);
    const most = d3.max(data.rows, ({ parts }) => d3.sum(parts, ({ size }) => size));
    const x = d3.scaleLinear([0, most], [layout.left, layout.right - room]);
    axisBelow(svg, d3.scaleLinear([0, most / data.per], x.range()),
      { y: layout.size, height: layout.size, width: layout.right - layout.left, title: data.unit });
    const rows = svg.selectAll("g.row").data(data.rows).join("g").attr("class", "row")
      .attr("transform", (_, index) => `translate(0,${index * layout.height})`);
    rowNames(rows, layout, width, ({ title }) => title);
    rows.append("text").attr("class", "value").attr("y", layout.top + layout.bar / 2).attr("dy", "0.35em")
      .attr("x", ({ parts }) => x(d3.sum(parts, ({ size }) => size)) + 6).text(({ text }) => text);
    const placed = data.rows.map(({ parts }) => {
      let end = 0;
      return parts.map((part) => ({ ...part, from: end, to: (end += part.size) }));
    });
    telling(rows.selectAll("rect").data((_, index) => placed[index]).join("rect").attr("class", "part")
      .attr("x", ({ from }) => x(from)).attr("width", ({ from, to }) => Math.max(1, x(to) - x(from) - 0.75))
      .attr("y", layout.top).attr("height", layout.bar).style("fill", ({ category }) => categoryColour(category)), ({ label }) => label);
  });
};

/** A cell for each row and column, stronger for more, with its number where there is room. */
charts.heatmap = function (figure, data) {
  drawAtWidth(figure, (width, plot) => {
    const widest = d3.max(data.rows, (name) => textWidth(name));
    const left = Math.ceil(Math.min(widest, width * 0.36)) + 13, top = 34;
    const right = Math.min(width - 4, left + 110 * data.columns.length);
    const cell = (right - left) / data.columns.length, height = cell > 40 ? 34 : 24;
    const x = d3.scaleBand(data.columns, [left, right]).paddingInner(cell > 12 ? 0.04 : 0);
    const svg = drawing(plot, width, top + data.rows.length * height + 8, data.name);
    const most = d3.max(data.cells, ({ size }) => size) || 1;
    const strength = (size) => 0.06 + 0.94 * Math.max(0, size) / most;
    const apart = Math.ceil((d3.max(data.columns, (name) => textWidth(name, 12)) + 10) / cell);
    svg.append("g").attr("aria-hidden", "true").selectAll("text").data(data.columns).join("text").attr("class", "head")
      .attr("x", (name) => x(name) + x.bandwidth() / 2).attr("y", 26).attr("text-anchor", "middle")
      .text((name, index) => index % apart === 0 ? name : "");
    svg.append("text").attr("class", "title").attr("x", left).attr("y", 10).text(data.across);
    svg.append("g").attr("aria-hidden", "true").selectAll("text").data(data.rows).join("text").attr("class", "name")
      .attr("x", left - 10).attr("y", (_, index) => top + index * height + height / 2).attr("dy", "0.3em").attr("text-anchor", "end")
      .text((name) => fitted(name, left - 12));
    const cells = svg.append("g").selectAll("g").data(data.cells).join("g")
      .attr("transform", ({ row, column }) => `translate(${x(data.columns[column])},${top + row * height})`);
    cells.append("rect").attr("class", "cell").attr("width", x.bandwidth()).attr("height", height - (cell > 12 ? 1.5 : 0))
      .style("fill-opacity", ({ size }) => strength(size));
    if (d3.max(data.cells, ({ text }) => textWidth(text, 12)) + 8 < x.bandwidth()) {
      cells.append("text").attr("class", ({ size }) => `number${strength(size) > 0.57 ? " middling" : ""}${strength(size) > 0.77 ? " strong" : ""}`)
        .attr("x", x.bandwidth() / 2).attr("y", height / 2).attr("dy", "0.32em").attr("text-anchor", "middle").text(({ text }) => text);
    }
    telling(cells.append("rect").attr("class", "hover").attr("width", x.bandwidth()).attr("height", height), ({ label }) => label);
  });
};

/** Steps in the order in which they ran, a point for each; ranks are told apart by shape where there are few. */
charts.steps = function (figure, data) {
  const shapes = [d3.symbolCircle, d3.symbolTriangle, d3.symbolSquare, d3.symbolDiamond];
  const colours = ["var(--arm-a)", "var(--arm-b)", "var(--category-compute-2)", "var(--soft)"];
  const few = data.ranks.length <= shapes.length;
  drawAtWidth(figure, (width, plot) => {
    if (few && data.ranks.length > 1) {
      legend(plot, data.ranks.map((rank, index) => ({ colour: colours[index], title: `rank ${rank}`, symbol: shapes[index] })));
    }
    const left = 52, right = width - 12, top = 10, bottom = 210;
    const most = d3.max(data.steps, ([, number]) => number);
    const x = d3.scaleLinear([1, Math.max(2, most)], [left + 10, right - 6]);
    const longest = d3.max(data.steps, ([, , ns]) => ns / data.per), shortest = d3.min(data.steps, ([, , ns]) => ns / data.per);
    const y = d3.scaleLinear([shortest - 0.05 * longest, longest * 1.05], [bottom, top]).nice(5);
    const svg = drawing(plot, width, bottom + AXIS, data.name);
    axisBelow(svg, x, { y: bottom + 6, height: 0, width: Math.min(right - left, most * 90), title: "step, in the order in which they ran" });
    axisLeft(svg, y, { left, right, title: data.unit });
    telling(svg.append("g").selectAll("path").data(data.steps).join("path")
      .attr("d", ([rank]) => d3.symbol(few ? shapes[rank] : d3.symbolCircle, data.steps.length > 200 ? 20 : 46)())
      .attr("transform", ([, number, ns]) => `translate(${x(number)},${y(ns / data.per)})`)
      .style("fill", ([rank]) => few ? colours[rank] : colours[0]).style("fill-opacity", few ? 1 : 0.5),
    ([rank, number, ns]) => `rank ${data.ranks[rank]}, step ${number}: ${duration(ns)}`);
  });
};

/** Ops below the roofs of their device, both axes logarithmic; larger points take more time. */
charts.roofline = function (figure, data) {
  const colours = ["var(--category-compute)", "var(--category-sync-wait)", "var(--category-compute-2)", "var(--category-exposed-transfer)"];
  const colour = (dtype) => colours[data.dtypes.indexOf(dtype) % colours.length];
  drawAtWidth(figure, (width, plot) => {
    legend(plot, data.dtypes.map((title) => ({ colour: colour(title), title, symbol: d3.symbolCircle })));
    const left = 58, right = width - 12, top = 18, bottom = Math.min(420, Math.max(260, width * 0.5));
    const roofs = data.roofs.flatMap(({ points }) => points);
    const x = d3.scaleLog(d3.extent(roofs, ([intensity]) => intensity), [left + 8, right - 8]);
    const y = d3.scaleLog(d3.extent([...roofs.map(([, rate]) => rate), ...data.points.map((point) => point.y)]), [bottom, top]).nice();
    const svg = drawing(plot, width, bottom + AXIS, data.name);
    axisBelow(svg, x, { y: bottom + 4, height: bottom - top, width: right - left, title: "FLOPs per byte", format: logNumber });
    axisLeft(svg, y, { left, right, title: "TFLOP/s", format: logNumber });
    svg.selectAll(".tick").filter(function () { return !this.textContent; }).remove();
    svg.append("g").selectAll("path").data(data.roofs).join("path").attr("class", "roof")
      .attr("d", ({ points }) => d3.line(([intensity]) => x(intensity), ([, rate]) => y(rate))(points)).style("stroke", ({ dtype }) => colour(dtype));
    const size = d3.scaleSqrt([0, d3.max(data.points, ({ ns }) => ns)], [2.5, 14]);
    telling(svg.append("g").selectAll("circle").data(data.points).join("circle").attr("class", "op")
      .attr("cx", (point) => x(point.x)).attr("cy", (point) => y(point.y)).attr("r", ({ ns }) => size(ns))
      .style("fill", ({ dtype }) => colour(dtype)), ({ label }) => label);
  });
};
