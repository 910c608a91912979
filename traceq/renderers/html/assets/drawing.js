// What all charts share: their registry, drawing at the width of their box, and the value under pointer or focus.
"use strict";

/** KIND -> function (figure, data), for each <figure data-chart="KIND">. */
const charts = {};

const PRINTED_WIDTH = 680;

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
    this.element.style.left = `${left + scrollX}px`;
    this.element.style.top = `${(above < 8 ? y + 18 : above) + scrollY}px`;
  },
  hide() {
    if (this.element) this.element.hidden = true;
  },
};
addEventListener("keydown", (event) => event.key === "Escape" && tooltip.hide());

/** Let marks tell their value: to the pointer, and by arrow keys; the marks of a chart are one stop of the Tab key. */
function telling(marks, label) {
  const nodes = marks.nodes();
  const showAt = (node, text) => {
    const box = node.getBoundingClientRect();
    tooltip.show(text, box.left + Math.min(box.width, 400) / 2, box.top);
  };
  marks.attr("role", "img").attr("aria-label", label).attr("tabindex", (_, index) => (index ? -1 : 0))
    .classed("mark", true)
    .on("pointerenter pointermove", function (event, datum) { tooltip.show(label(datum), event.clientX, event.clientY); })
    .on("pointerleave blur", () => tooltip.hide())
    .on("focus", function (_, datum) { showAt(this, label(datum)); })
    .on("keydown", function (event) {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
      if (!(event.key in steps)) return;
      event.preventDefault();
      const next = nodes[Math.max(0, Math.min(nodes.length - 1, nodes.indexOf(this) + steps[event.key]))];
      this.setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    });
}

const pen = document.createElement("canvas").getContext("2d");

/** Width of a text in CSS pixels, in the page's font. */
function textWidth(text, size = 13, weight = 400) {
  pen.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

/** The text, cut in its middle to a width: names differ at both ends. */
function fitted(text, width, size = 13) {
  if (textWidth(text, size) <= width) return text;
  let kept = text.length - 1;
  const cut = () => `${text.slice(0, Math.ceil(kept * 0.6))}…${text.slice(text.length - Math.floor(kept * 0.4))}`;
  while (kept > 3 && textWidth(cut(), size) > width) kept -= 1;
  return cut();
}
