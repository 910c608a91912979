// Painting of the timeline: which lane is where, and all that is visible of it on a canvas.
"use strict";

const LANE_HEIGHT = { phase: 20, category: 22, sync: 18, collective: 18, stream: 20, module: 18, line: 18, host: 17 };
const GROUP_HEIGHT = 26, GAP = 3, AXIS_HEIGHT = 26, GUTTER = 128, WITHOUT_GUTTER = 640, LABEL_HEIGHT = 14;
const SHADES = 4;
const TINY = 1; // px: narrower spans are drawn as one

/** Rows from top to bottom for a width: of each group its title, then its lanes, each with its y and height. */
class TimelineLayout {
  constructor(data, width) {
    this.width = width;
    this.isNarrow = width < WITHOUT_GUTTER;
    this.gutter = this.isNarrow ? 0 : GUTTER;
    this.titles = [];
    this.rows = [];
    let y = 0;
    for (const group of data.groups) {
      const top = y;
      this.titles.push({ group, y });
      y += GROUP_HEIGHT;
      for (const lane of group.lanes) {
        if (lane.depth === 0) y += GAP + (this.isNarrow ? LABEL_HEIGHT : 0);
        this.rows.push({ lane, y, height: LANE_HEIGHT[lane.kind] });
        y += LANE_HEIGHT[lane.kind] + (lane.kind === "host" ? 0 : 1);
      }
      y += 10;
      Object.assign(group, { top, bottom: y });
    }
    this.height = y;
  }

  rowAt(y) { return this.rows.find((row) => y >= row.y && y < row.y + row.height); }

  rowOf(lane) { return this.rows.find((row) => row.lane === lane); }
}

/** Colours of the page as canvas needs them, with the ink that is readable on each. */
class TimelineColours {
  constructor() {
    for (const name of ["ink", "soft", "line", "back", "mark", "focus"]) this[name] = cssColour(`--timeline-${name}`);
    this.fills = new Map();
  }

  /** Fill of a span by what it is, with one of four shades by its name: neighbours stay apart. */
  fill(colour, name) {
    const shade = colour === "op" || colour === "kernel" || colour === "module" || colour === "phase" || colour === "source" ? hash(name) % SHADES : 0;
    const key = `${colour}${shade}`;
    if (!this.fills.has(key)) this.fills.set(key, this.shaded(fillColour(colour), shade));
    return this.fills.get(key);
  }

  shaded(value, shade) {
    const context = pen;
    context.fillStyle = value;
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(context.fillStyle.slice(at, at + 2), 16));
    const mixed = [red, green, blue].map((part) => Math.round(part + (255 - part) * 0.13 * shade));
    const light = luminance(mixed);
    return { style: `rgb(${mixed.join(" ")})`, ink: 1.05 / (light + 0.05) > (light + 0.05) / 0.05 ? "#ffffff" : "#000000" };
  }
}

/** Colour of a span by what it is: one of the timeline's, or that of a category of time. */
function fillColour(colour) {
  const name = colour.replaceAll("_", "-");
  return cssColour(`--timeline-${name}`) || cssColour(`--category-${name}`) || cssColour("--category-other");
}

function luminance(parts) {
  const [red, green, blue] = parts.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function hash(text) {
  let value = 0;
  for (let index = 0; index < text.length; index += 1) value = (value * 31 + text.charCodeAt(index)) | 0;
  return value >>> 1;
}

/** Paints one frame: `view` has data, layout, colours, scale (ns to px), and what is hovered, focused, marked, matched. */
class TimelinePainter {
  constructor(canvas, axis) {
    this.canvas = canvas;
    this.axis = axis;
    this.textWidths = new Map();
  }

  paint(view) {
    const { layout, colours } = view;
    const context = fitted2d(this.canvas, layout.width, layout.height);
    const font = getComputedStyle(this.canvas).fontFamily;
    context.fillStyle = colours.back;
    context.fillRect(0, 0, layout.width, layout.height);
    context.font = `11px ${font}`;
    context.textBaseline = "middle";
    const ticks = timeTicks(view);
    context.save();
    context.beginPath();
    context.rect(layout.gutter, 0, layout.width - layout.gutter, layout.height);
    context.clip();
    this.grid(context, view, ticks);
    for (const row of layout.rows) this.lane(context, view, row);
    this.marks(context, view);
    context.restore();
    this.titles(context, view, font);
    this.axisLine(view, ticks, font);
  }

  grid(context, view, ticks) {
    context.fillStyle = view.colours.line;
    for (const tick of ticks.values) context.fillRect(Math.round(view.scale(tick)), 0, 1, view.layout.height);
    for (const group of view.data.groups) {
      for (const [, start, end] of group.steps) {
        context.fillStyle = view.colours.soft;
        for (const time of [start, end]) context.fillRect(Math.round(view.scale(time)), group.top, 1, group.bottom - group.top);
      }
    }
  }

  titles(context, view, font) {
    const { layout, colours } = view;
    for (const { group, y } of layout.titles) {
      context.fillStyle = colours.mark;
      context.fillRect(0, y + 2, layout.width, GROUP_HEIGHT - 4);
      context.fillStyle = colours.ink;
      context.font = `600 12px ${font}`;
      const width = context.measureText(group.title).width;
      context.fillText(group.title, 6, y + GROUP_HEIGHT / 2 + 0.5, layout.width - 12);
      context.font = `11px ${font}`;
      context.fillStyle = colours.soft;
      for (const [name, start, end] of group.steps) {
        const left = Math.max(view.scale(start) + 5, width + 22), right = Math.min(view.scale(end), layout.width);
        this.text(context, `${name}, ${duration(end - start)}`, left, y + GROUP_HEIGHT / 2 + 0.5, right - left);
      }
    }
    for (const row of layout.rows) {
      if (!row.lane.title) continue;
      context.fillStyle = colours.soft;
      if (layout.isNarrow) this.text(context, row.lane.title, 4, row.y - LABEL_HEIGHT / 2, layout.width);
      else this.text(context, row.lane.title, 6, row.y + row.height / 2, layout.gutter - 10);
    }
  }

  /** All visible spans of a row; those below a pixel are drawn once per pixel, the longest of a pixel's where colours tell. */
  lane(context, view, { lane, y, height }) {
    const { scale, data } = view;
    const [from, to] = scale.domain();
    const perPixel = (to - from) / (scale.range()[1] - scale.range()[0]);
    const tells = lane.kind === "category" || lane.kind === "phase";
    let run = null; // touching pixels of one colour, drawn as one
    const finish = () => {
      if (!run) return;
      context.fillStyle = run.style;
      context.fillRect(run.left, y, run.right - run.left, height - 1);
      run = null;
    };
    for (let index = lane.after(from); index < lane.length && lane.start[index] < to;) {
      let shown = index, left = scale(lane.start[index]), right = scale(lane.end[index]);
      let next = index + 1;
      if (right - left < TINY) {
        const pixelEnd = lane.start[index] + perPixel * TINY;
        next = Math.max(next, lane.after(pixelEnd));
        if (tells) for (let other = index; other < next; other += 1) if (lane.end[other] - lane.start[other] > lane.end[shown] - lane.start[shown]) shown = other;
        right = left + TINY;
        if (!view.matches) {
          const { style } = view.colours.fill(lane.blocks.has(shown) ? "block" : data.labels[lane.label[shown]].colour, "");
          if (!run || run.style !== style || left > run.right + 0.25) {
            finish();
            run = { style, left, right };
          }
          run.right = right;
          index = next;
          continue;
        }
      }
      this.span(context, view, lane, shown, Math.max(left, -4), Math.min(right, view.layout.width + 4), y, height, data);
      index = next;
    }
    finish();
  }

  span(context, view, lane, index, left, right, y, height, data) {
    const block = lane.blocks.get(index), width = right - left;
    const label = block ? null : data.labels[lane.label[index]];
    const fill = view.colours.fill(block ? "block" : label.colour, block ? "" : label.name);
    const isFaint = view.matches && (block || !view.matches.has(lane.label[index]));
    context.globalAlpha = isFaint ? 0.18 : block ? 0.35 + 0.65 * Math.min(block.busy / Math.max(lane.end[index] - lane.start[index], 1), 1) : 1;
    context.fillStyle = fill.style;
    context.fillRect(left, y, width > 3 ? width - 0.75 : width, height - 1);
    context.globalAlpha = isFaint ? 0.3 : 1;
    if (width > 22) {
      context.fillStyle = fill.ink;
      const from = Math.max(left, view.layout.gutter);
      this.text(context, block ? data.name(lane, index) : label.name, from + 3, y + height / 2, right - from - 6);
    }
    context.globalAlpha = 1;
  }

  /** A text, cut to a width; nothing where less than two characters fit. */
  text(context, text, x, y, room) {
    if (room < 12) return;
    const key = context.font.startsWith("6") ? `b${text}` : text;
    let width = this.textWidths.get(key);
    if (width === undefined) this.textWidths.set(key, width = context.measureText(text).width);
    if (width <= room) return context.fillText(text, x, y);
    const kept = Math.floor((text.length * (room - 8)) / width);
    return kept > 1 ? context.fillText(`${text.slice(0, kept)}…`, x, y) : undefined;
  }

  marks(context, view) {
    const { marked, hovered, focused, layout, scale, colours, data } = view;
    if (marked) {
      const group = marked.group, left = scale(marked.start), right = Math.max(scale(marked.end), left + 2);
      context.fillStyle = colours.focus;
      context.globalAlpha = 0.14;
      context.fillRect(left, group.top, right - left, group.bottom - group.top);
      context.globalAlpha = 1;
      for (const x of [left, right]) context.fillRect(Math.round(x), group.top, 1.5, group.bottom - group.top);
    }
    for (const [target, width] of [[hovered, 1], [focused, 2]]) {
      const row = target && layout.rowOf(target.lane);
      if (!row) continue;
      const left = scale(target.lane.start[target.index]), right = Math.max(scale(target.lane.end[target.index]), left + 2);
      context.strokeStyle = width > 1 ? colours.focus : colours.ink;
      context.lineWidth = width;
      context.strokeRect(Math.max(left, -9), row.y - 0.5, Math.min(right, layout.width + 9) - Math.max(left, -9), row.height);
      this.arrow(context, view, row, data.launchOf(target.lane, target.index));
    }
  }

  /** A line from the launch of device work to where it begins. */
  arrow(context, { layout, scale, colours, focused, hovered }, row, launch) {
    const from = launch && layout.rowOf(launch.lane);
    if (!from) return;
    const target = focused && focused.lane === row.lane ? focused : hovered;
    const x = scale(launch.time), y = from.y, endX = scale(target.lane.start[target.index]), endY = row.y + row.height;
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.25;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x, y - 30, endX, endY + 30, endX, endY);
    context.stroke();
    context.beginPath();
    context.arc(x, y, 2.5, 0, 7);
    context.fillStyle = colours.ink;
    context.fill();
  }

  axisLine(view, ticks, font) {
    const { layout, colours, scale } = view;
    const context = fitted2d(this.axis, layout.width, AXIS_HEIGHT);
    context.fillStyle = colours.back;
    context.fillRect(0, 0, layout.width, AXIS_HEIGHT);
    context.font = `11px ${font}`;
    context.textBaseline = "middle";
    context.fillStyle = colours.soft;
    for (const tick of ticks.values) {
      const x = Math.round(scale(tick));
      if (x < layout.gutter) continue;
      context.fillRect(x, AXIS_HEIGHT - 5, 1, 5);
      const text = ticks.format(tick), width = context.measureText(text).width;
      if (x + 3 + width < layout.width) context.fillText(text, x + 3, AXIS_HEIGHT / 2 - 1);
    }
    context.fillRect(layout.gutter, AXIS_HEIGHT - 1, layout.width - layout.gutter, 1);
    if (layout.gutter) context.fillText(ticks.span, 6, AXIS_HEIGHT / 2 - 1);
  }
}

/** Ticks in round numbers of one unit, fine enough to differ: {values, format, span}. */
function timeTicks(view) {
  const { scale, layout } = view;
  const [from, to] = scale.domain();
  const values = scale.ticks(Math.max(2, Math.floor((layout.width - layout.gutter) / 110)));
  const step = values.length > 1 ? values[1] - values[0] : to - from;
  const largest = Math.max(Math.abs(from), Math.abs(to));
  const [unit, size] = largest >= 1e9 && step >= 1e6 ? ["s", 1e9] : largest >= 1e6 && step >= 1e3 ? ["ms", 1e6] : largest >= 1e3 && step >= 1 ? ["us", 1e3] : ["ns", 1];
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / size) + 1e-9)));
  const written = new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return { values, format: (tick) => `${written.format(tick / size)} ${unit}`, span: `${duration(to - from)} in view` };
}

/** The drawing context of a canvas that is sharp at the screen's resolution, in CSS pixels. */
function fitted2d(canvas, width, height) {
  const ratio = devicePixelRatio;
  const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d", { alpha: false });
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
