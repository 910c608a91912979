// The timeline: zoom and pan by wheel, drag, keys and touch; hover, focus, search; places that the page links to.
"use strict";

const KEYS_HELP = "Zoom: wheel once the pointer moved here, pinch, W S or ↑ ↓. Pan: drag, Shift+wheel, A D or ← →. Click a span, or step with , and . (< > for the next lane); F zooms to it, 0 shows the step, / searches, Esc goes back.";
const DEEPEST_PX = 24; // px that the shortest span of its own may take
const AROUND = 3; // most margin on either side of a place, in its durations; less where that were over half a step

charts.timeline = async function (figure, data) {
  const view = new TimelineView(figure, data.number);
  try {
    view.open(new TimelineData(await unpacked(data.packed)));
  } catch (fault) {
    view.details.textContent = `The timeline needs a browser from 2023 or later. ${fault}`;
    throw fault;
  }
};

class TimelineView {
  constructor(figure, number) {
    this.figure = figure;
    this.number = number; // of several on one page
    this.hovered = this.focused = this.marked = this.matches = null;
    this.before = null; // where a click came from
    const box = document.createElement("div");
    box.className = "timeline";
    const element = (tag, name, attributes = {}, parent = box) => {
      const made = document.createElement(tag);
      if (name) made.className = name;
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      parent.append(made);
      return made;
    };
    this.legend = element("p", "timeline-legend");
    this.head = element("div", "timeline-head"); // stays in view while one scrolls through the lanes
    const bar = element("div", "timeline-bar", {}, this.head);
    const button = (text, label, act) => {
      const made = element("button", "", { type: "button", "aria-label": label, title: label }, bar);
      made.textContent = text;
      made.addEventListener("click", act);
      return made;
    };
    this.back = button("← back", "Back to where the link was", () => this.goBack());
    this.back.hidden = true;
    button("−", "Zoom out", () => this.zoomBy(1 / 2));
    button("+", "Zoom in", () => this.zoomBy(2));
    button("step", "Show the step", () => this.show(...this.data.step));
    button("all", "Show all", () => this.show(this.data.start, this.data.end));
    this.search = element("input", "", { type: "search", placeholder: "search ops, kernels, lines", "aria-label": "Search the timeline" }, bar);
    this.count = element("output", "timeline-count", {}, bar);
    this.axis = element("canvas", "timeline-axis", { "aria-hidden": "true" }, this.head);
    this.canvas = element("canvas", "timeline-canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline" });
    this.details = element("p", "timeline-details", { role: "status", "aria-live": "polite" });
    const help = element("p", "timeline-help", { id: `timeline-help-${document.querySelectorAll(".timeline-help").length}` });
    help.textContent = KEYS_HELP;
    this.canvas.setAttribute("aria-describedby", help.id);
    this.notes = element("p", "timeline-notes note");
    figure.querySelector("figcaption").after(box);
    this.box = box;
  }

  open(data) {
    this.data = data;
    this.colours = new TimelineColours();
    this.painter = new TimelinePainter(this.canvas, this.axis);
    this.canvas.setAttribute("aria-label", this.figure.querySelector("figcaption").textContent);
    this.notes.textContent = data.notes.join(" ");
    this.legend.append(...data.colours.map(([colour, text]) => {
      const entry = Object.assign(document.createElement("span"), { className: "timeline-colour", textContent: text });
      entry.style.setProperty("--colour", categoryColour(colour));
      return entry;
    }));
    const shortest = data.finest || 1;
    const deepest = Math.max(2, ((data.end - data.start) * DEEPEST_PX) / (shortest * 1000));
    this.zoom = d3.zoom().scaleExtent([1, deepest]).filter((event) => this.zooms(event)).clickDistance(4)
      .on("start", () => this.canvas.classList.add("dragged"))
      .on("end", () => this.canvas.classList.remove("dragged"))
      .on("zoom", (event) => this.zoomed(event.transform));
    this.selection = d3.select(this.canvas);
    this.listen();
    this.selection.call(this.zoom).on("dblclick.zoom", null);
    new ResizeObserver(() => this.fit()).observe(this.box);
    this.fit();
  }

  // ---- Size and view

  fit() {
    const width = Math.floor(this.box.clientWidth);
    if (width < 1 || width === this.layout?.width) return;
    const range = this.layout ? this.scale.domain() : this.data.step;
    this.layout = new TimelineLayout(this.data, width);
    this.whole = d3.scaleLinear([this.data.start, this.data.end], [this.layout.gutter, width]);
    this.scale = this.whole;
    const extent = [[this.layout.gutter, 0], [width, this.layout.height]];
    this.zoom.extent(extent).translateExtent(extent);
    this.show(...range);
  }

  zoomed(transform) {
    this.scale = transform.rescaleX(this.whole);
    this.figure.dataset.visible = this.scale.domain().map(Math.round).join(",");
    this.draw();
  }

  /** Show the time from `start` to `end` ns, as far as the deepest zoom and the data allow. */
  show(start, end) {
    const [left, right] = this.whole.range(), full = this.data.end - this.data.start;
    const factor = Math.min(Math.max(full / Math.max(end - start, 1e-9), 1), this.zoom.scaleExtent()[1]);
    const middle = this.whole((start + end) / 2);
    const shift = Math.min(Math.max((left + right) / 2 - middle * factor, right - right * factor), left - left * factor);
    this.selection.call(this.zoom.transform, d3.zoomIdentity.translate(shift, 0).scale(factor));
  }

  zoomBy(factor, x) {
    const [left, right] = this.whole.range();
    this.selection.call(this.zoom.scaleBy, factor, [x ?? (left + right) / 2, 0]);
  }

  panBy(share) {
    const [left, right] = this.whole.range();
    const { k } = d3.zoomTransform(this.canvas);
    this.selection.call(this.zoom.translateBy, (-share * (right - left)) / k, 0);
  }

  draw() {
    if (this.frame || !this.layout) return; // a folded one has no size yet
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.painter.paint(this);
      this.figure.dataset.drawn = String(Number(this.figure.dataset.drawn ?? 0) + 1);
    });
  }

  // ---- Pointer

  /** Whether an event zooms: a wheel only once the pointer moved here, so that a page scrolls on over the timeline. */
  zooms(event) {
    if (event.type === "wheel") return (this.isArmed || event.ctrlKey) && !this.pans(event);
    return !event.button && !event.ctrlKey;
  }

  pans(event) { return !event.ctrlKey && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)); }

  listen() {
    const canvas = this.canvas;
    addEventListener("scroll", () => { this.isArmed = false; }, { passive: true });
    canvas.addEventListener("wheel", (event) => {
      if (!this.pans(event)) return;
      event.preventDefault();
      this.panBy((event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX) / this.layout.width);
    }, { passive: false });
    canvas.addEventListener("pointermove", (event) => {
      if (event.movementX || event.movementY) this.isArmed = true;
      if (event.pointerType !== "touch") this.hover(event);
    });
    canvas.addEventListener("pointerdown", () => { this.isArmed = true; });
    canvas.addEventListener("pointerleave", () => this.hoverAt(null));
    canvas.addEventListener("click", (event) => this.focusOn(this.spanAt(event)));
    canvas.addEventListener("dblclick", (event) => {
      const target = this.spanAt(event);
      if (target) this.zoomTo(target); else this.zoomBy(2, event.offsetX);
    });
    this.listenToTouch(canvas);
    canvas.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.marked && this.goBack());
    document.addEventListener("traceq:goto", (event) => this.goTo(event.detail));
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.nextMatch(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.find(this.search.value = "");
    });
    onColours(() => {
      this.colours = new TimelineColours();
      this.painter.paint(this);
      this.draw();
    });
  }

  /** A finger that moves up or down scrolls the page; only one that moves sideways, and two of them, are the zoom's. */
  listenToTouch(canvas) {
    let first = null, scrolls = null;
    canvas.addEventListener("touchstart", (event) => {
      first = event.touches.length === 1 ? event.touches[0] : null;
      scrolls = first ? null : false;
    }, { passive: true });
    canvas.addEventListener("touchmove", (event) => {
      if (scrolls === null && first) {
        const { clientX, clientY } = event.touches[0];
        scrolls = Math.abs(clientY - first.clientY) > Math.abs(clientX - first.clientX);
      }
      if (scrolls) event.stopImmediatePropagation();
    }, { passive: true });
  }

  spanAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, row = this.layout.rowAt(event.clientY - box.top);
    if (!row || x < this.layout.gutter) return null;
    const perPixel = this.scale.invert(1) - this.scale.invert(0);
    const index = row.lane.find(this.scale.invert(x), 2 * perPixel);
    return index < 0 ? null : { lane: row.lane, index };
  }

  hover(event) {
    const target = event.buttons ? null : this.spanAt(event);
    this.hoverAt(target);
    if (target) tooltip.show(this.data.words(target.lane, target.index).join("\n"), event.clientX, event.clientY);
  }

  hoverAt(target) {
    if (!target) tooltip.hide();
    if (target?.lane === this.hovered?.lane && target?.index === this.hovered?.index) return;
    this.hovered = target;
    this.figure.dataset.hovered = target ? this.data.words(target.lane, target.index).join(" · ") : "";
    this.draw();
  }

  // ---- Keys and focus

  key(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const act = {
      w: () => this.zoomBy(1.5), ArrowUp: () => this.zoomBy(1.5), "+": () => this.zoomBy(1.5), "=": () => this.zoomBy(1.5),
      s: () => this.zoomBy(1 / 1.5), ArrowDown: () => this.zoomBy(1 / 1.5), "-": () => this.zoomBy(1 / 1.5),
      a: () => this.panBy(-0.2), ArrowLeft: () => this.panBy(-0.2), d: () => this.panBy(0.2), ArrowRight: () => this.panBy(0.2),
      0: () => this.show(...this.data.step),
      ",": () => this.step(-1), ".": () => this.step(1), "<": () => this.changeLane(-1), ">": () => this.changeLane(1),
      f: () => this.focused && this.zoomTo(this.focused), Enter: () => this.focused && this.zoomTo(this.focused),
      "/": () => this.search.focus(), Escape: () => !this.marked && this.focusOn(null),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Focus the next or previous span of the lane; without a focus the first one in view. */
  step(by) {
    if (!this.focused) return this.changeLane(1);
    const index = Math.max(0, Math.min(this.focused.lane.length - 1, this.focused.index + by));
    return this.focusOn({ lane: this.focused.lane, index }, true);
  }

  /** Focus the span of the next lane, up or down, that is nearest in time. */
  changeLane(by) {
    const lanes = this.data.lanes, time = this.focused ? this.focused.lane.start[this.focused.index] : this.scale.domain()[0];
    const position = this.focused ? lanes.indexOf(this.focused.lane) + by : 0;
    const lane = lanes[Math.max(0, Math.min(lanes.length - 1, position))];
    this.focusOn({ lane, index: Math.min(lane.after(time), lane.length - 1) }, true);
  }

  focusOn(target, follow = false) {
    this.focused = target;
    this.details.textContent = target ? `${target.lane.group.title}: ${this.data.words(target.lane, target.index).join(" · ")}` : "";
    this.figure.dataset.focused = target ? this.data.name(target.lane, target.index) : "";
    if (target && follow) this.reveal(target.lane.start[target.index], target.lane.end[target.index]);
    this.draw();
  }

  /** Pan, without zooming in, so that a time is in view. */
  reveal(start, end) {
    const [from, to] = this.scale.domain();
    if (start >= from && end <= to) return;
    const length = Math.max(to - from, end - start), middle = (start + end) / 2;
    this.show(middle - length / 2, middle + length / 2);
  }

  zoomTo({ lane, index }) {
    const length = Math.max(lane.end[index] - lane.start[index], 1);
    this.show(lane.start[index] - length * 0.15, lane.end[index] + length * 0.15);
  }

  // ---- Search

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = null;
    this.matching = [];
    if (wanted) {
      this.matches = new Set(this.data.labels.flatMap((label, number) => (
        [label.name, label.op, label.line].some((part) => part.toLowerCase().includes(wanted)) ? [number] : [])));
      for (const lane of this.data.lanes) {
        for (let index = 0; index < lane.length; index += 1) if (this.matches.has(lane.label[index])) this.matching.push({ lane, index });
      }
    }
    this.position = -1;
    this.count.textContent = wanted ? `${this.matching.length.toLocaleString("en")} spans` : "";
    this.figure.dataset.matches = wanted ? String(this.matching.length) : "";
    this.draw();
  }

  nextMatch(by) {
    if (!this.matching?.length) return;
    this.position = (this.position + by + this.matching.length) % this.matching.length;
    const target = this.matching[this.position];
    this.focusOn(target);
    this.reveal(target.lane.start[target.index], target.lane.end[target.index]);
    this.count.textContent = `${this.position + 1} of ${this.matching.length.toLocaleString("en")} spans`;
  }

  // ---- Places that the page links to

  /** Bring a place {rank, start, end, side} into view, highlighted, and remember where the click was. */
  goTo({ rank, start, end, side = "", timeline = 0, from = document.activeElement }) {
    const group = this.data.groups.find((each) => each.rank === rank && each.side === side);
    if (timeline !== this.number || !group) return this.forget();
    const folded = this.figure.closest("details:not([open])");
    if (folded) folded.open = true;
    this.fit();
    this.before ??= { range: this.scale.domain(), x: scrollX, y: scrollY, from };
    this.marked = { group, start, end };
    this.figure.dataset.marked = `${side}${rank}:${start},${end}`;
    this.back.hidden = false;
    const length = Math.max(end - start, 1), half = (this.data.step[1] - this.data.step[0]) / 2;
    const margin = Math.min(AROUND * length, Math.max((half - length) / 2, length * 0.15));
    this.show(start - margin, end + margin);
    this.canvas.focus({ preventScroll: true });
    const top = this.canvas.getBoundingClientRect().top + scrollY + group.top;
    scrollTo({ left: scrollX, top: top - this.head.clientHeight - 16 });
    const begins = group.lanes.filter((each) => each.start[each.find(start)] === start);
    const lane = begins.find((each) => each.end[each.find(start)] === end) ?? begins[0];
    this.focusOn(lane ? { lane, index: lane.find(start) } : null);
  }

  /** Show no place; a click leads to another timeline. */
  forget() {
    this.before = this.marked = null;
    this.back.hidden = true;
    this.figure.dataset.marked = "";
    this.focusOn(null);
  }

  goBack() {
    if (!this.before) return;
    const { range, x, y, from } = this.before;
    this.forget();
    this.show(...range);
    from?.focus?.({ preventScroll: true });
    scrollTo({ left: x, top: y });
  }
}
