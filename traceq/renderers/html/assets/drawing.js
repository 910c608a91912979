// What all charts share: their registry, drawing at the width of their box, and the value under pointer or focus.
"use strict";

/** KIND -> function (figure, data), for each <figure data-chart="KIND">. */
const charts = {};

const PRINTED_WIDTH = 680;
const NARROW = 560;
const BOLD = 600;

/** Value of a colour, such as cssColour("--category-compute"): for canvas; SVG uses `var()` and needs no redraw. */
function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Call `changed` when colours change: light, dark, or print. */
function onColours(changed) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  addEventListener("beforeprint", changed);
  addEventListener("afterprint", changed);
}

/** Colour of a category of time, such as `exposed_wait`. */
const categoryColour = (key) => `var(--category-${key.replaceAll("_", "-")}, var(--category-other))`;

/** Call draw(width, plot) now and whenever the figure's box has another width; `plot` is an empty element. */
function drawAtWidth(figure, draw) {
  const plot = document.createElement("div");
  plot.className = "plot";
  figure.querySelector("figcaption").after(plot);
  let drawn = 0;
  const redraw = (width) => {
    if (width < 1 || width === drawn) return;
    drawn = width;
    plot.replaceChildren();
    draw(width, plot);
  };
  const fit = () => redraw(Math.floor(plot.getBoundingClientRect().width));
  fit();
  new ResizeObserver(fit).observe(plot);
  addEventListener("beforeprint", () => drawn && redraw(PRINTED_WIDTH));
  addEventListener("afterprint", fit);
}

/** An SVG of the size in CSS pixels, named for those who do not see it. */
function drawing(plot, width, height, name) {
  return d3.select(plot).append("svg")
    .attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height)
    .attr("role", "group").attr("aria-label", name);
}

/** A legend above a chart: [{ colour, title, mark }], where `mark` is a sign that tells the same without colour. */
function legend(plot, entries) {
  const items = d3.select(plot).append("ul").attr("class", "legend").selectAll("li").data(entries).join("li");
  const swatch = items.append("svg").attr("width", 14).attr("height", 14).attr("aria-hidden", "true");
  swatch.append("path").attr("transform", "translate(7,7)")
    .attr("d", (entry) => d3.symbol(entry.symbol ?? d3.symbolSquare, 80)())
    .style("fill", (entry) => entry.colour).style("fill-opacity", (entry) => entry.hollow ? 0 : 1)
    .style("stroke", (entry) => entry.colour).attr("stroke-width", 1.5);
  items.append("span").text((entry) => entry.title);
}

/** Numbers of a logarithmic axis: those that begin with 1, 2 or 5 are written. */
const logNumber = (value) => "125".includes(value.toExponential(0)[0]) ? plainNumber(value) : "";
const plainNumber = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 4 });

/** An axis of numbers at the bottom, with its unit below and lines behind the marks. */
function axisBelow(svg, scale, { y, height, width, title, format = plainNumber }) {
  const axis = svg.append("g").attr("class", "axis").attr("transform", `translate(0,${y})`).attr("aria-hidden", "true")
    .call(d3.axisBottom(scale).ticks(Math.max(2, Math.min(8, width / 90))).tickFormat(format).tickSizeOuter(0).tickPadding(6));
  axis.select(".domain").remove();
  axis.selectAll(".tick line").attr("y2", -height).classed("zero", (value) => value === 0);
  axis.append("text").attr("class", "title").attr("x", scale.range()[1]).attr("y", 36).attr("text-anchor", "end").text(title);
  return axis;
}

/** The one tooltip of the page: tooltip.show("text", clientX, clientY), tooltip.hide(). A line per "\n". */
const tooltip = {
  element: null,
  show(text, x, y) {
    if (!this.element) {
      this.element = document.createElement("div");
      this.element.className = "tooltip";
      this.element.setAttribute("aria-hidden", "true"); // what has the focus says the same by its label
      document.body.append(this.element);
    }
    this.element.textContent = text;
    this.element.hidden = false;
    const box = this.element.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const left = Math.max(8, Math.min(x + 14, room - box.width - 8));
    const above = y - box.height - 12;
    this.element.style.left = `${left}px`;
    this.element.style.top = `${above < 8 ? y + 18 : above}px`;
  },
  hide() {
    if (this.element) this.element.hidden = true;
  },
};
addEventListener("keydown", (event) => event.key === "Escape" && tooltip.hide());
addEventListener("scroll", () => tooltip.hide(), { passive: true });

/** Let marks tell their value: to the pointer, and by arrow keys; the marks of a chart are one stop of the Tab key. */
function telling(marks, label) {
  const nodes = marks.nodes();
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  marks.attr("role", "img").attr("aria-label", (datum) => label(datum).replaceAll("\n", ", "))
    .attr("tabindex", (_, index) => (index ? -1 : 0)).classed("mark", true)
    .on("pointerenter pointermove", (event, datum) => tooltip.show(label(datum), event.clientX, event.clientY))
    .on("pointerleave blur", () => tooltip.hide())
    .on("focus", function (_, datum) {
      const box = this.getBoundingClientRect();
      tooltip.show(label(datum), box.left + Math.min(box.width, 400) / 2, box.top);
    })
    .on("keydown", function (event) {
      if (!(event.key in steps)) return;
      event.preventDefault();
      const next = nodes[Math.max(0, Math.min(nodes.length - 1, nodes.indexOf(this) + steps[event.key]))];
      this.setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    });
}

/** `3.60 ms` for nanoseconds, with three digits, as `traceq.units.format_value` writes them. */
function duration(ns) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) {
    if (Math.abs(ns) < size * 0.9995) continue;
    const value = ns / size, magnitude = Math.abs(value);
    const digits = magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
    return `${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
  }
  return ns ? `${Math.round(ns)} ns` : "0";
}

const signed = (ns) => (ns > 0 ? "+" : "") + duration(ns);

const pen = document.createElement("canvas").getContext("2d");

/** Width of a text in CSS pixels, in the page's font. */
function textWidth(text, size = 13, weight = 400) {
  pen.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

/** The text, cut in its middle to a width: names differ at both ends. */
function fitted(text, width, size = 13, weight = 400) {
  if (textWidth(text, size, weight) <= width) return text;
  let kept = text.length - 1;
  const cut = () => `${text.slice(0, Math.ceil(kept * 0.6))}…${text.slice(text.length - Math.floor(kept * 0.4))}`;
  while (kept > 3 && textWidth(cut(), size, weight) > width) kept -= 1;
  return cut();
}

/** Where named rows of a chart lie: names, some of them bold, left of the bars, or above them where it is narrow. */
function rowLayout(width, names, { bar = 18, right = 8 } = {}) {
  const isNarrow = width < NARROW;
  const widest = d3.max(names, (name) => textWidth(name, 13, BOLD)) ?? 0;
  const left = isNarrow ? 6 : Math.ceil(Math.min(widest, width * 0.36)) + 14;
  const top = isNarrow ? 20 : 5, height = isNarrow ? bar + 28 : bar + 10;
  return { isNarrow, left, right: width - right, bar, top, height, size: names.length * height };
}

/** The names of rows, in groups that are moved to their rows. */
function rowNames(groups, layout, width, name) {
  groups.append("text").attr("class", "name")
    .attr("x", layout.isNarrow ? layout.left : layout.left - 12).attr("y", layout.isNarrow ? 14 : layout.top + layout.bar / 2)
    .attr("dy", layout.isNarrow ? 0 : "0.35em").attr("text-anchor", layout.isNarrow ? "start" : "end")
    .text((row) => fitted(name(row), layout.isNarrow ? width - layout.left - 2 : layout.left - 13, 13, BOLD));
}
