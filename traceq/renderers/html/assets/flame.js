// The flame view: frames of the host's stacks as wide as their time; a click zooms, a search highlights.
"use strict";

const FLAME_KEYS_HELP = "Click a frame, or Enter, to zoom into it; Esc or the outermost frame zooms out. Arrow keys walk the tree. Width is time per step; hover for numbers.";
const FRAME_HEIGHT = 20, NARROWEST = 1; // px

charts.flame = function (figure, data) { new FlameView(figure, data); };

class FlameView {
  constructor(figure, data) {
    this.figure = figure;
    this.isPair = data.ns.length > 1;
    this.names = data.names;
    this.nodes = this.tree(data);
    this.root = this.zoomedTo = this.nodes[0];
    const box = document.createElement("div");
    box.className = "flame";
    const bar = document.createElement("div");
    bar.className = "timeline-bar";
    this.search = Object.assign(document.createElement("input"), { type: "search", placeholder: "search modules, lines, ops" });
    this.search.setAttribute("aria-label", "Search the flame view");
    this.out = Object.assign(document.createElement("button"), { type: "button", textContent: "all", title: "Show the whole step" });
    this.count = document.createElement("output");
    this.count.className = "timeline-count";
    bar.append(this.out, this.search, this.count, this.legend(data.kinds));
    this.plot = document.createElement("div");
    this.plot.className = "flame-plot";
    this.plot.setAttribute("role", "tree");
    this.plot.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
    this.details = document.createElement("p");
    this.details.className = "timeline-details";
    this.details.setAttribute("role", "status");
    const help = Object.assign(document.createElement("p"), { className: "timeline-help", textContent: FLAME_KEYS_HELP });
    box.append(bar, this.plot, this.details, help);
    figure.querySelector("figcaption").after(box);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.draw();
  }

  /** Nodes, each before those inside it, with their share of the width: of a pair, of both sides' time together. */
  tree(data) {
    const nodes = [], open = [];
    for (let index = 0; index < data.depth.length; index += 1) {
      const depth = data.depth[index], ns = data.ns.map((side, number) => side[index] / data.steps[number]);
      const node = { depth, ns, sum: ns.reduce((sum, each) => sum + each, 0), name: data.texts[data.label[index]], kind: data.kinds[data.kind[index]], inside: [], parent: depth ? open[depth - 1] : null };
      node.parent?.inside.push(node);
      open[depth] = node;
      nodes.push(node);
    }
    nodes[0].start = 0;
    for (const node of nodes) {
      let start = node.start;
      for (const inner of node.inside) {
        inner.start = start;
        start += inner.sum;
      }
    }
    return nodes;
  }

  legend(kinds) {
    const legend = document.createElement("span");
    legend.className = "flame-legend";
    const entries = this.isPair ? [["costs", "+ B takes longer"], ["saves", "− B is faster"], ["same", "same"]]
      : kinds.filter((kind) => this.nodes.some((node) => node.kind === kind && node.depth)).map((kind) => [kind, kind === "rest" ? "shorter ones" : kind]);
    for (const [name, text] of entries) {
      const entry = Object.assign(document.createElement("span"), { textContent: text });
      entry.className = `flame-key ${name}`;
      legend.append(entry);
    }
    return legend;
  }

  listen() {
    this.out.addEventListener("click", () => this.zoomTo(this.root));
    this.plot.addEventListener("click", (event) => {
      const node = this.nodeOf(event.target);
      if (node) this.zoomTo(node);
    });
    this.plot.addEventListener("pointermove", (event) => {
      const node = this.nodeOf(event.target);
      this.figure.dataset.hovered = node ? node.name : "";
      if (node) tooltip.show(this.words(node).join("\n"), event.clientX, event.clientY); else tooltip.hide();
    });
    this.plot.addEventListener("pointerleave", () => tooltip.hide());
    this.plot.addEventListener("focusin", (event) => {
      const node = this.nodeOf(event.target);
      if (node) this.details.textContent = this.words(node).join(" · ");
    });
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => event.key === "Escape" && (this.search.value = "", this.find()));
  }

  nodeOf(element) { return element.closest?.(".frame")?.node; }

  key(event) {
    const node = this.nodeOf(event.target);
    const siblings = node?.parent ? node.parent.inside.filter((each) => each.element) : [node];
    const position = siblings.indexOf(node);
    const next = {
      ArrowRight: siblings[position + 1], ArrowLeft: siblings[position - 1],
      ArrowDown: node?.inside.find((each) => each.element), ArrowUp: node?.parent,
    }[event.key];
    if (next?.element) {
      event.preventDefault();
      this.focus(next);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.zoomTo(node, true);
    } else if (event.key === "Escape" && this.zoomedTo !== this.root) this.zoomTo(this.zoomedTo.parent ?? this.root, true);
  }

  focus(node) {
    for (const frame of this.plot.querySelectorAll('[tabindex="0"]')) frame.tabIndex = -1;
    node.element.tabIndex = 0;
    node.element.focus({ preventScroll: true });
  }

  zoomTo(node, focus = false) {
    this.zoomedTo = node;
    this.figure.dataset.zoomed = node === this.root ? "" : node.name;
    tooltip.hide();
    this.draw();
    if (focus) this.focus(node);
  }

  /** Frames wide enough to be seen; those around the zoomed one take the whole width. */
  draw() {
    const width = this.plot.clientWidth, zoomed = this.zoomedTo;
    if (width < 1) return;
    const scale = width / zoomed.sum, around = new Set();
    for (let node = zoomed.parent; node; node = node.parent) around.add(node);
    let deepest = 0;
    const frames = [];
    for (const node of this.nodes) {
      const left = around.has(node) ? 0 : (node.start - zoomed.start) * scale;
      const size = around.has(node) ? width : node.sum * scale;
      const isInside = around.has(node) || (left > -0.5 && left + size < width + 0.5 && this.isBelow(node, zoomed));
      if (!isInside || size < NARROWEST) { node.element = null; continue; }
      deepest = Math.max(deepest, node.depth);
      frames.push(this.frame(node, left, size));
    }
    this.plot.style.height = `${(deepest + 1) * FRAME_HEIGHT}px`;
    this.plot.replaceChildren(...frames);
    zoomed.element.tabIndex = 0;
    this.figure.dataset.frames = String(frames.length);
  }

  isBelow(node, outer) {
    let each = node;
    while (each && each.depth > outer.depth) each = each.parent;
    return each === outer;
  }

  frame(node, left, size) {
    const frame = document.createElement("div");
    frame.className = `frame ${this.isPair ? this.change(node) : node.kind}`;
    frame.textContent = size > 24 ? this.label(node) : "";
    frame.setAttribute("role", "treeitem");
    frame.setAttribute("aria-level", node.depth + 1);
    frame.setAttribute("aria-label", this.words(node).join(", "));
    frame.setAttribute("aria-selected", String(node === this.zoomedTo));
    frame.tabIndex = -1;
    Object.assign(frame.style, { left: `${left}px`, width: `${Math.max(size - 0.75, 0.75)}px`, top: `${node.depth * FRAME_HEIGHT}px` });
    if (this.isPair) frame.style.setProperty("--amount", `${Math.round(100 * this.amount(node))}%`);
    if (this.wanted) frame.classList.add(this.isMatch(node) ? "match" : "faint");
    frame.node = node;
    node.element = frame;
    return frame;
  }

  label(node) {
    if (!this.isPair || this.change(node) === "same") return node.name;
    return `${signed(node.ns[1] - node.ns[0])} ${node.name}`;
  }

  /** Which way a frame of a pair changed: by more than a thousandth of the step. */
  change(node) {
    const delta = node.ns[1] - node.ns[0];
    return Math.abs(delta) < this.root.sum / 2000 ? "same" : delta > 0 ? "costs" : "saves";
  }

  /** How strong the colour of a change is: from a little to full at a tenth of the step. */
  amount(node) { return Math.min(0.25 + (Math.abs(node.ns[1] - node.ns[0]) / (this.root.sum / 2)) * 7.5, 1); }

  words(node) {
    const share = (each, side) => `${((100 * each) / (this.root.ns[side] || 1)).toFixed(1)} %`;
    if (this.isPair) {
      const [a, b] = node.ns;
      return [node.name, `${signed(b - a)} per step`, `A ${this.names[0]}: ${duration(a)} (${share(a, 0)})`, `B ${this.names[1]}: ${duration(b)} (${share(b, 1)})`, node.kind];
    }
    const self = node.ns[0] - node.inside.reduce((sum, inner) => sum + inner.ns[0], 0);
    const lines = [node.name, `${duration(node.ns[0])} per step, ${share(node.ns[0], 0)} of it`];
    if (node.inside.length && self > 0) lines.push(`${duration(self)} of it in itself`);
    return node.kind === "rest" || node.kind === "step" ? lines : [...lines, node.kind];
  }

  find() {
    this.wanted = this.search.value.trim().toLowerCase();
    let sum = 0;
    const add = (node) => {
      if (this.isMatch(node)) sum += node.sum; else node.inside.forEach(add);
    };
    if (this.wanted) add(this.root);
    this.count.textContent = this.wanted ? `${((100 * sum) / this.root.sum).toFixed(1)} % of the step` : "";
    this.figure.dataset.matches = this.count.textContent;
    this.draw();
  }

  isMatch(node) { return node.name.toLowerCase().includes(this.wanted); }
}
