// The timeline's lanes: unpacked from the page, searched by time, and described in words.
"use strict";

/** What a page packed (base64 of zlib of JSON); rejects in browsers without DecompressionStream, older than 2023. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/** One row of spans by start; times in ns from the timeline's zero. */
class Lane {
  constructor(data, group) {
    const size = data.ns.length;
    Object.assign(this, { title: data.title, kind: data.kind, depth: data.depth, group });
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.reach = new Float64Array(size); // latest end so far: ascends, where spans overlap, too
    this.label = Int32Array.from(data.label);
    this.extra = data.extra ? Float64Array.from(data.extra) : null;
    this.blocks = new Map();
    let time = 0, reach = -Infinity, blocks = 0;
    for (let index = 0; index < size; index += 1) {
      this.start[index] = time + data.gap[index];
      time = this.end[index] = this.start[index] + data.ns[index];
      this.reach[index] = reach = Math.max(reach, time);
      if (data.label[index] < 0) {
        this.blocks.set(index, { num: data.num[blocks], busy: data.busy[blocks] });
        blocks += 1;
      }
    }
  }

  get length() { return this.start.length; }

  /** Index of the first span that ends after a time. */
  after(time) { return firstAbove(this.reach, time); }

  /** Index of the span at a time, or within `slack` ns of it; -1 without one. */
  find(time, slack = 0) {
    let best = -1, least = slack;
    for (let index = this.after(time - slack); index < this.length && this.start[index] <= time + slack; index += 1) {
      const distance = Math.max(this.start[index] - time, time - this.end[index], 0);
      if (distance < least || (distance === 0 && time < this.end[index])) {
        best = index;
        least = distance;
        if (distance === 0) break;
      }
    }
    return best;
  }
}

function firstAbove(ascending, value) {
  let low = 0, high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

/** All lanes, group by group, and what their spans say. */
class TimelineData {
  constructor(data) {
    Object.assign(this, { start: data.start, end: data.end, step: data.step, finest: data.finest, notes: data.notes });
    this.labels = data.labels.map(([name, colour, op, line, note]) => (
      { name: data.texts[name], colour: data.texts[colour], op: data.texts[op], line: data.texts[line], note: data.texts[note] }));
    this.groups = data.groups.map((group) => {
      const built = { ...group, lanes: [] };
      built.lanes = group.lanes.map((lane) => new Lane(lane, built));
      return built;
    });
    this.lanes = this.groups.flatMap((group) => group.lanes);
    const used = this.lanes.filter((lane) => lane.kind === "category").flatMap((lane) => [...new Set(lane.label)]);
    /** Categories of time that occur, as [colour, name]. */
    this.colours = [...new Set(used)].filter((label) => label >= 0).map((label) => [this.labels[label].colour, this.labels[label].name]);
  }

  /** Name of a span. */
  name(lane, index) {
    const block = lane.blocks.get(index);
    return block ? `${block.num.toLocaleString("en")} ${NOUNS[lane.kind] ?? "spans"}` : this.labels[lane.label[index]].name;
  }

  /** When the host was at what a span is: of device work its launch. */
  hostTime(lane, index) {
    const lag = lane.kind === "stream" && lane.extra && !lane.blocks.has(index) ? lane.extra[index] : -1;
    return lag >= 0 ? lane.start[index] - lag : lane.start[index];
  }

  /** Lines that say all about a span: its name, its time, then op, line, module, phase, cost. */
  words(lane, index) {
    const length = lane.end[index] - lane.start[index], block = lane.blocks.get(index);
    const at = duration(lane.start[index]);
    const lines = [this.name(lane, index)];
    if (block) {
      lines.push(`${duration(block.busy)} in ${duration(length)}, from ${at}`, `each shorter than ${duration(this.finest)}, drawn as one block`);
      if (lane.kind === "sync" && lane.extra) lines.push(`the device idles ${duration(lane.extra[index])} right after them`);
      return lines;
    }
    const label = this.labels[lane.label[index]];
    lines.push(`${duration(length)}, from ${at}`);
    if (lane.kind === "sync") lines.push(`the device idles ${duration(lane.extra[index])} right after it`);
    if (label.note) lines.push(label.note);
    if (label.op && !label.name.includes(label.op)) lines.push(`op ${label.op}`);
    if (label.line && label.line !== label.name) lines.push(`line ${label.line}`);
    const around = this.around(lane, index);
    if (around.module) lines.push(`module ${around.module}`);
    if (around.phase) lines.push(`phase ${around.phase}`);
    if (lane.kind === "stream" && lane.extra[index] >= 0) lines.push(`starts ${duration(lane.extra[index])} after its launch`);
    return lines;
  }

  /** Names of the phase and the module at the time of a span. */
  around(lane, index) {
    const time = this.hostTime(lane, index), named = {};
    for (const kind of ["phase", "module"]) {
      const other = lane.kind === kind ? null : lane.group.lanes.find((each) => each.kind === kind);
      const span = other ? other.find(time) : -1;
      if (span >= 0 && !other.blocks.has(span)) named[kind] = this.name(other, span);
    }
    return named;
  }

  /** The row of the host in which a launch is: {lane, index} of the innermost span, or null. */
  launchOf(lane, index) {
    if (lane.kind !== "stream" || lane.blocks.has(index) || lane.extra[index] < 0) return null;
    const time = lane.start[index] - lane.extra[index];
    const rows = lane.group.lanes.filter((each) => each.kind === "host" && each.find(time) >= 0);
    const row = rows.at(-1);
    return row ? { lane: row, index: row.find(time), time } : null;
  }
}

const NOUNS = { host: "ops", stream: "kernels", sync: "syncs", collective: "collectives", category: "pieces", module: "modules", line: "lines", phase: "phases" };
