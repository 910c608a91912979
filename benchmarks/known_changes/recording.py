"""Recorded traces that can be changed: what they hold, and the given simulator that replays them."""

from __future__ import annotations

import gzip
import importlib
import json
import marshal
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Doc = dict[str, Any]
"""A Kineto trace, as JSON holds it."""

_OLD_CATEGORIES = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Runtime": "cuda_runtime",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
_OPS = ("aten::mm", "aten::addmm", "aten::conv2d", "aten::linear", "aten::bmm", "aten::copy_", "aten::empty")
"""Ops after which a change is put, the first one that is frequent enough."""


class UnsuitableSource(Exception):
    """A trace in which a kind of change has no place."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change, in the words of the trace.

    `kind` is "sync", "host", "kernel", "collective" or "replaced". `names` are the ops of a sync behind its direction,
    the owners of host time ("" between ops), or families of kernels; `ops` are those that launch the kernels, or all
    ops of the trace, where "" is an owner. It happens `num` times, on `rank`; None: on all.
    """

    kind: str
    names: tuple[str, ...]
    num: int = 1
    ops: tuple[str, ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tools:
    """The given modules."""

    simulate: Any
    gen: Any
    traces: Path

    @classmethod
    def load(cls, folder: Path, traces: Path) -> Tools:
        """Import the tools of a folder, without leaving bytecode in it."""
        os.environ.update(KNOWN_TRACES=str(traces), KNOWN_OUT=os.devnull)  # `gen` reads both when it is imported
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(folder))
        return cls(importlib.import_module("simulate"), importlib.import_module("gen"), traces)

    def places(self, doc: Doc, num: int, ops: Sequence[str] = _OPS) -> list[Doc]:
        """Return `num` ops per step, after which a change is put."""
        count = Counter(event["name"] for event in doc["traceEvents"] if event.get("cat") == "cpu_op")
        num_steps = max(1, len(self.gen.steps(doc)))
        frequent = [op for least in (3 * num, num) for op in ops if count[op] >= least * num_steps]
        if not count:
            raise UnsuitableSource("no ops")
        places: list[Doc] = self.gen.picks(doc, (*frequent, count.most_common(1)[0][0])[0], num)
        return places

    def owners(self, doc: Doc, places: Sequence[Doc], rank: int | None = None) -> Change:
        """Return added host time after some ops as a change: its owners are the innermost ops that are open there."""
        names = tuple(self.gen.owner(doc, places))
        ops = {event["name"] for event in doc["traceEvents"] if event.get("cat") == "cpu_op"} if "" in names else ()
        return Change("host", names, len(places), tuple(sorted(ops)), rank)

    def add_sync(self, doc: Doc, simulator: Any, places: Sequence[Doc], waits: Any, kind: str) -> None:
        """Add the events of syncs for which the simulator has kept time."""
        self.gen.add_sync(doc, simulator, places, waits, kind, stream=main_stream(simulator))


class Recording:
    """A source, parsed once: `doc()` returns a new copy of it."""

    def __init__(self, tools: Tools, source: str) -> None:
        """Read the trace; its times count from a near instant, as a double of 1.7e15 us is exact to .25 us only."""
        self.tools, self.source = tools, source
        content = (tools.traces / f"{source}.json.gz").read_bytes()
        doc = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        doc = {"traceEvents": doc, "schemaVersion": 1} if isinstance(doc, list) else doc
        events = doc["traceEvents"]
        for event in events:
            if event.get("cat") in _OLD_CATEGORIES:
                is_step = event.get("name", "").startswith("ProfilerStep")
                event["cat"] = "user_annotation" if is_step else _OLD_CATEGORIES[event["cat"]]
        first = min(event["ts"] for event in events if event.get("ph") == "X" and "ts" in event)
        zero = int(first) // 1_000_000 * 1_000_000 if first > 1e13 else 0
        for event in events:
            if event.get("ts", 0) > zero:
                event["ts"] -= zero
        self._packed = marshal.dumps(doc)

    def doc(self) -> Doc:
        """Return the trace as recorded."""
        doc: Doc = marshal.loads(self._packed)
        return doc

    def replayed(self) -> dict[int, Doc]:
        """Return the trace as the simulator replays it unchanged: A of most cases."""
        doc = self.doc()
        self.tools.simulate.Sim(doc).run()
        return {0: doc}

    def start(self) -> tuple[Doc, Any]:
        """Return a copy and its simulator."""
        doc = self.doc()
        return doc, self.tools.simulate.Sim(doc)


# ---- what is in a trace ---------------------------------------------------------------------------------------------


def after(places: Sequence[Doc]) -> list[float]:
    """Return the instants just after some events, in us."""
    return [event["ts"] + event["dur"] + 0.01 for event in places]


def is_compute(event: Doc) -> bool:
    """Return whether an event is a kernel that is no collective's."""
    return event["cat"] == "kernel" and "nccl" not in event["name"].lower()


def stream_of(event: Doc) -> tuple[Any, Any]:
    """Return (device, stream) of device work."""
    return event["args"].get("device"), event["args"].get("stream")


def main_stream(simulator: Any) -> tuple[Any, Any]:
    """Return the (device, stream) with most launched compute kernels."""
    launched = (work for i, work in enumerate(simulator.dev) if simulator.info[i][1] is not None)
    streams = Counter(stream_of(work) for work in launched if is_compute(work))
    if not streams:
        raise UnsuitableSource("no compute kernel was launched in the trace")
    return streams.most_common(1)[0][0]


def largest_kernel(doc: Doc) -> str:
    """Return the name of the compute kernel with most time."""
    time: Counter[str] = Counter()
    for event in doc["traceEvents"]:
        if event.get("cat") == "kernel" and is_compute(event):
            time[event["name"]] += event["dur"]
    return time.most_common(1)[0][0]


def launching_ops(doc: Doc, simulator: Any) -> dict[int, Doc]:
    """Return the innermost op around each launch call, by the id of the call."""
    by_thread: dict[tuple[Any, Any], list[tuple[float, int, float, Doc]]] = defaultdict(list)
    for event in doc["traceEvents"]:
        if event.get("cat") == "cpu_op" and "dur" in event:
            by_thread[event["pid"], event["tid"]].append((event["ts"], 0, -event["dur"], event))
    for call in {id(call): call for call in simulator.launch.values()}.values():
        by_thread[call["pid"], call["tid"]].append((call["ts"], 1, 0, call))
    op_of = {}
    for events in by_thread.values():
        open_ops: list[Doc] = []
        for ts, is_call, _, event in sorted(events, key=lambda entry: entry[:3]):
            while open_ops and open_ops[-1]["ts"] + open_ops[-1]["dur"] <= ts:
                open_ops.pop()
            if not is_call:
                open_ops.append(event)
            elif open_ops:
                op_of[id(event)] = open_ops[-1]
    return op_of


def launched_kernels(doc: Doc, simulator: Any) -> list[tuple[str, Doc]]:
    """Return (op, kernel) of all compute kernels that an op launched."""
    op_of = launching_ops(doc, simulator)
    calls = [(simulator.info[i][1], work) for i, work in enumerate(simulator.dev) if is_compute(work)]
    return [(op_of[id(call)]["name"], work) for call, work in calls if call is not None and id(call) in op_of]
