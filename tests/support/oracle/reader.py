"""A Kineto file as plain events with exact ns times, its main thread, host steps and launches."""

from __future__ import annotations

import gzip
import json
import math
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from .spans import measure, subtract, union

MAX_DUR_NS = 10**18  # 1e15 us: 31 years

CATEGORIES = {
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "mtia_runtime": "runtime",
    "runtime": "runtime",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "trace": "trace",
    "overhead": "overhead",
    "gpu_user_annotation": "device_annotation",
    "cuda_sync": "cuda_sync",
}
ANNOTATIONS_OF_2021 = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
ENGINE = re.compile(r"execute_\d*_?context_(\d+)\(.*\)_generation_(\d+)\(|step\[(EXTEND|DECODE) ")
"""Steps of the inference engines in the catalogue."""
HOST = ("cpu_op", "annotation", "python_function", "runtime", "compiling")
DEVICE = ("kernel", "memcpy", "memset")
COMPILES = re.compile(r"dynamo$|entire_(frame|backward)_compile$|.* \(dynamo_timed\)$")
PROFILERS_PYTHON = re.compile(r"torch/profiler/profiler\.py\(\d+\): (__(enter|exit)__|(start|stop)(_trace)?)$")
NOT_THE_PROGRAM = ("trace", "overhead", "device_annotation", "cuda_sync")


@dataclass(slots=True)
class Event:
    """One kept complete event; `args` has lower-case keys, `thread` is (pid, tid) as strings."""

    row: int
    name: str
    cat: str
    start: int
    end: int
    thread: tuple[str, str]
    args: dict[str, Any]

    @property
    def stream(self) -> tuple[str, str]:
        return str(self.args.get("device")), str(self.args.get("stream"))


@dataclass
class Trace:
    """What the other modules ask for; `launches` maps the row of a device op to its launching call."""

    meta: dict[str, Any]
    events: list[Event]
    num_dropped: int
    num_counters: int = 0
    device_ops: list[Event] = field(default_factory=list)
    launches: dict[int, Event] = field(default_factory=dict)
    main: tuple[str, str] = ("", "")
    host_steps: list[tuple[str, int, int]] = field(default_factory=list)


def read(path: Path | str) -> Trace:
    """The trace at `path` (plain or gzip, an object or a bare array)."""
    content = Path(path).read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    document = json.loads(content.decode("utf-8", "replace"), parse_float=str)
    meta = {} if isinstance(document, list) else document
    raw = document if isinstance(document, list) else document["traceEvents"]
    complete = [item for item in raw if item.get("ph") == "X"]
    made = [make_event(row, item) for row, item in enumerate(complete)]
    counters = sum(item.get("ph") == "C" for item in raw)
    trace = Trace(meta, [event for event in made if event], made.count(None), counters)
    mark_compiling(trace.events)
    trace.device_ops = [event for event in trace.events if event.cat in DEVICE]
    trace.launches = find_launches(trace)
    trace.main, trace.host_steps = find_steps(trace.events)
    if trace.launches and ENGINE.match(trace.host_steps[0][0]):  # with what comes before a mark, as windows have it
        ends = [trace.host_steps[0][1], *(end for _, _, end in trace.host_steps)]
        trace.host_steps = [(name, start, end) for (name, _, end), start in zip(trace.host_steps, ends, strict=False)]
    if trace.host_steps and trace.host_steps[0][0] == "whole trace":
        ((name, start, end),) = trace.host_steps
        trace.host_steps = [(name, max(start, host_begins(trace)), end)]
    return trace


def host_begins(trace: Trace) -> int:
    """When the host's first row begins, if it launches work; else 0."""
    return min((e.start for e in trace.events if e.cat in HOST), default=0) if trace.launches else 0


def mark_compiling(events: list[Event]) -> None:
    """Give all that a thread does while it compiles a category of its own, but for calls of a device."""
    ranges = [e for e in events if e.cat in ("cpu_op", "annotation") and COMPILES.match(e.name)]
    host = [e for e in events if e.cat in ("cpu_op", "annotation", "python_function")]
    for event in host if ranges else ():
        if any(around.thread == event.thread and (event is around or is_inside(event, around)) for around in ranges):
            event.cat = "compiling"


def compiling(trace: Trace) -> list[tuple[int, int]]:
    """When the host compiles: the main thread, or others while it is in no op."""
    rows = [e for e in trace.events if e.cat == "compiling"]
    others = union([(e.start, e.end) for e in rows if e.thread != trace.main])
    busy = [(e.start, e.end) for e in trace.events if e.thread == trace.main and e.cat in ("cpu_op", "runtime")]
    return union([*((e.start, e.end) for e in rows if e.thread == trace.main), *subtract(others, union(busy))])


def make_event(row: int, item: dict[str, Any]) -> Event | None:
    """The event, or None if its start or duration is missing, negative, not finite or absurd."""
    start, dur = to_ns(item.get("ts")), to_ns(item.get("dur"))
    if start is None or dur is None or not 0 <= dur <= MAX_DUR_NS:
        return None
    name = str(item.get("name", ""))
    args = {str(key).lower(): value for key, value in (item.get("args") or {}).items()}
    thread = (str(item.get("pid")), str(item.get("tid")))
    return Event(row, name, category(str(item.get("cat", "")).lower(), name), start, start + dur, thread, args)


def category(cat: str, name: str) -> str:
    if cat == "operator" and name.startswith(ANNOTATIONS_OF_2021):
        return "annotation"
    if cat == "mtia_ccp_events":
        return {"dma_request": "memcpy", "event_wait": "cuda_sync", "event_record": "cuda_sync"}.get(name, "kernel")
    return CATEGORIES.get(cat, cat)


def to_ns(microseconds: Any) -> int | None:
    """Exact ns of a decimal text or an integer of microseconds; None for anything else."""
    if isinstance(microseconds, bool) or microseconds is None:
        return None
    if isinstance(microseconds, int):
        return microseconds * 1000
    if isinstance(microseconds, float) and not math.isfinite(microseconds):
        return None
    try:
        value = Decimal(str(microseconds))
    except InvalidOperation:
        return None
    return int((value * 1000).to_integral_value()) if value.is_finite() else None


def integer(value: Any, absent: int = -1) -> int:
    """An integer argument, also when it is written as text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return absent


def find_launches(trace: Trace) -> dict[int, Event]:
    """Row of a device op -> its runtime call: the earliest with the same positive correlation, then file order."""
    calls: dict[int, Event] = {}
    for event in trace.events:
        correlation = integer(event.args.get("correlation"))
        if event.cat == "runtime" and correlation > 0:
            entries = calls.get(correlation)
            if entries is None or event.start < entries.start:
                calls[correlation] = event
    links = {}
    for op in trace.device_ops:
        call = calls.get(integer(op.args.get("correlation")))
        if call is not None:
            links[op.row] = call
    return links


def is_inside(event: Event, other: Event) -> bool:
    return other is not event and other.start <= event.start and event.end <= other.end


def find_steps(events: list[Event]) -> tuple[tuple[str, str], list[tuple[str, int, int]]]:
    """The main thread and its host steps (name, start, end); without any, one step `whole trace`."""
    marks: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for event in events:
        if event.cat == "annotation" and event.name.startswith("ProfilerStep#"):
            marks.setdefault(event.thread, []).append((event.name, event.start, event.end))
    engine = [event for event in events if event.cat == "annotation" and ENGINE.match(event.name)]
    for event in [] if marks else engine:
        around = [other for other in engine if other.thread == event.thread and is_inside(event, other)]
        if not around:
            marks.setdefault(event.thread, []).append((event.name, event.start, event.end))
    if marks:
        main = max(marks, key=lambda thread: len(marks[thread]))  # dict order breaks ties: first in file
        return main, sorted(marks[main], key=lambda step: step[1])
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for event in events:
        if event.cat in ("cpu_op", "annotation", "runtime", "compiling"):
            spans.setdefault(event.thread, []).append((event.start, event.end))
    main = max(spans, key=lambda thread: measure(spans[thread])) if spans else ("", "")
    inside = [event for event in events if event.cat not in NOT_THE_PROGRAM]
    if not inside:
        return main, []
    profilers = [e for e in inside if PROFILERS_PYTHON.search(e.name)]
    program = [e for e in inside if e.cat != "python_function" and not any(is_inside(e, frame) for frame in profilers)]
    stops = [frame.start for frame in profilers if frame.start >= max((e.end for e in program), default=2**62)]
    end = min([max(e.end for e in inside), *stops])  # frames are open until the profiler has stopped
    return main, [("whole trace", min(e.start for e in inside), end)]
