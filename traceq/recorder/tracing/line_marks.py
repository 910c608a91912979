"""Marks in a profile for the running Python line, and by them the line of each op, and of the time between ops.

Kineto's Python frames hold only the first line of a function. In a block of `marked_lines` each new line of user code
is an empty range `line:3 file.py:41 function`, of a method `Class.function`, on the main thread, by the profiler's
clock; 3 frames of user code are around that of the function. An op belongs to the last mark before it. Frames of torch
and related libraries are skipped, and those of libraries that do not use torch: what pandas does is of the line that
calls it.
"""

from __future__ import annotations

import gzip
import re
import sys
import sysconfig
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import msgspec
import torch

from traceq import recorder
from traceq.facts.timeline.call_sites import INDUCTOR_CODE, line_function
from traceq.facts.timeline.phases import OTHER
from traceq.locations import open_binary
from traceq.model import KEPT_BYTES, KEPT_LINE, SourceLines

PREFIX = "line:"

_NAMELESS = re.compile(r"(\.<locals>\.<\w{1,20}>){1,20}$")

_PACKAGES = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
_RELATED = ("torch", "accelerate", "deepspeed", "triton", "functorch")
_LIBRARIES = (
    *(f"{folder}/{name}/" for folder in _PACKAGES for name in _RELATED),
    f"{Path(torch.__file__).parent}/",
)
_STANDARD = f"{sysconfig.get_path('stdlib')}/"
_RECORDER = (f"{Path(recorder.__file__).parent}/", f"{Path(recorder.__file__).parents[1]}/pytest_plugin.py")
_ROOTS = tuple(f"{folder}/" for folder in _PACKAGES)


@contextmanager
def marked_lines() -> Iterator[None]:
    """Mark the lines that run in the block, on this thread; a tracer (debugger, coverage) is restored after it."""
    for answers in (is_user_code, _uses_torch):
        answers.cache_clear()  # a package may have loaded what uses torch since then
    before, tracers = sys.gettrace(), _trace_running_frames()
    sys.settrace(_on_call)
    try:
        yield
    finally:
        sys.settrace(before)
        for frame in frames_from(sys._getframe().f_back):
            if isinstance(frame.f_trace, _LineTracer):
                frame.f_trace = tracers.get(id(frame))


def _trace_running_frames() -> dict[int, Any]:
    """Mark the lines of functions that already run, as a loop does; return their tracers before, by the frame's id.

    A frame itself would keep the loop's iterator, which is to end with the loop.
    """
    running = [frame for frame in frames_from(sys._getframe().f_back) if is_user_code(frame.f_code.co_filename)]
    tracers = {id(frame): frame.f_trace for frame in running}
    for depth, frame in enumerate(reversed(running)):
        frame.f_trace = _LineTracer(depth)
    return tracers


def mark_running_line() -> None:
    """Mark the current line of the nearest user frame: a step that begins inside a loop has no new line yet."""
    _mark_nearest(sys._getframe())


def marked_place(name: str) -> tuple[int, str]:
    """Return the number of frames around, and `file.py:41 function`, of the name of a mark."""
    depth, _, line = name.removeprefix(PREFIX).partition(" ")
    return int(depth), line


@dataclass(frozen=True, slots=True)
class _LineTracer:
    """Marks the lines of a frame that has `depth` frames of user code around it."""

    depth: int

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            _mark(frame.f_code, frame.f_lineno, self.depth)
        elif event == "return":
            _mark_nearest(frame)
        return self


def _on_call(frame: FrameType, event: str, arg: Any) -> Any:
    if not is_user_code(frame.f_code.co_filename):
        return None
    around = (caller.f_trace for caller in frames_from(frame.f_back))
    return _LineTracer(next((tracer.depth + 1 for tracer in around if isinstance(tracer, _LineTracer)), 0))


def _mark_nearest(frame: FrameType) -> None:
    caller = next((caller for caller in frames_from(frame.f_back) if is_user_code(caller.f_code.co_filename)), None)
    if caller is not None:
        tracer = caller.f_trace
        _mark(caller.f_code, caller.f_lineno, tracer.depth if isinstance(tracer, _LineTracer) else 0)


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those around it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def is_user_code(filename: str) -> bool:
    """Return True for user code and libraries that use torch; not for torch, related ones, the stdlib or the recorder.

    Nor for what torch.compile generated, which is called where the model is.
    """
    if filename.startswith(("<", *_LIBRARIES, *_RECORDER)) or re.search(f"{INDUCTOR_CODE}$", filename):
        return False
    if root := next((root for root in _ROOTS if filename.startswith(root)), ""):
        return _uses_torch(filename.removeprefix(root).partition("/")[0].removesuffix(".py"))
    return not filename.startswith(_STANDARD)


@cache
def _uses_torch(package: str) -> bool:
    """Return whether a loaded module of an installed package has imported torch, or something of it."""
    loaded = [module for name, module in sys.modules.copy().items() if name.partition(".")[0] == package]
    values = (value for module in loaded if _is_module(module) for value in list(_globals(module).values()))
    return any(_origin(value).partition(".")[0] == "torch" for value in values)


def _origin(value: Any) -> str:
    """Return the name of a module, or of that of a class or a function; "" of anything else."""
    if _is_module(value):
        return str(_globals(value).get("__name__", ""))
    if issubclass(type(value), type):
        return str(type.__getattribute__(value, "__module__"))
    return str(value.__module__) if type(value) is FunctionType else ""


def _is_module(value: object) -> bool:
    return issubclass(type(value), ModuleType)  # `isinstance` asks a proxy what it stands for, which may raise


def _globals(module: ModuleType) -> dict[str, Any]:
    globals_: dict[str, Any] = object.__getattribute__(module, "__dict__")  # `vars` loads a lazy module
    return globals_


@cache
def is_own_code(filename: str) -> bool:
    """Return True for user code that is not in an installed package."""
    return is_user_code(filename) and not filename.startswith(_ROOTS)


def _mark(code: CodeType, line: int, depth: int) -> None:
    with _range(code.co_filename, line, function_name(code), depth):
        pass


@cache
def function_name(code: CodeType) -> str:
    """Return `GPT.forward`: classes of one file have methods of the same name; of a function inside another its own.

    What has no name, as a comprehension, belongs to the function around it.
    """
    return _NAMELESS.sub("", code.co_qualname).rpartition("<locals>.")[2]


@cache
def _range(filename: str, line: int, function: str, depth: int) -> Any:
    name = filename.replace("\\", "/").rpartition("/")[2]  # not by pathlib, which Dynamo would compile
    return torch._C._profiler._RecordFunctionFast(f"{PREFIX}{depth} {name}:{line} {function}")


_STEP = "ProfilerStep#"
_DEVICE_TYPES = {"cpu": 0, "cuda": 1}
"""As rows of memory name the device."""
_LEAST_SPLIT_US = 20.0
"""Time between ops, with marks, from which it is split by function: less is that of one."""
_LEAST_PERCENT = 5


Calls = tuple[str, ...]
"""Lines of which each calls the function of the next."""


class _Memory(msgspec.Struct, frozen=True, gc=False):
    """What an allocator gave or, negative, took back."""

    size: int = msgspec.field(default=0, name="Bytes")
    address: int = msgspec.field(default=0, name="Addr")
    device_type: int = msgspec.field(default=-1, name="Device Type")


class TraceRow(msgspec.Struct, frozen=True):
    """An event of a trace; `ph` is X for events with a duration."""

    name: str = ""
    cat: str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = 0.0
    ph: str = ""
    args: _Memory = _Memory()

    @property
    def end(self) -> float:
        """End of the event, us."""
        return self.ts + self.dur


class _Document(msgspec.Struct):
    traceEvents: list[TraceRow]  # noqa: N815 (Kineto's key)


@dataclass(frozen=True, slots=True)
class _Op:
    phase: str
    name: str
    line: str
    begin: float
    end: float


class _Edge(NamedTuple):
    """An instant of the main thread: a `line` begins, or no op runs from here on, `after` something, or one does.

    `depth`: the number of frames around the line.

    Of edges at the same time those that end something come first.
    """

    ts: float
    order: int
    after: str = ""
    line: str | None = None
    depth: int = 0


def read_rows(path: Path) -> list[TraceRow]:
    """Return the events of a trace file, in its order."""
    with open_binary(path) as packed, gzip.GzipFile(fileobj=packed) as file:
        return msgspec.json.decode(file.read(), type=_Document, strict=False).traceEvents


def rows_of_last_step(rows: Sequence[TraceRow]) -> list[TraceRow]:
    """Return the events from the begin of the last step on; all of them where no step is marked."""
    step = _last_step(rows)
    return [row for row in rows if step is None or row.ts >= step.ts]


def source_lines(rows: Sequence[TraceRow], phases: Sequence[str]) -> SourceLines:
    """Return the line of the n-th outermost op per name and phase of the step, and those between ops.

    "" if no mark precedes an op. The main thread is the one with the ProfilerStep annotation; the last of several
    steps is used.
    """
    step = _last_step(rows)
    if step is None:
        return SourceLines((), {})
    main = sorted(
        (row for row in rows if row.tid == step.tid and step.ts <= row.ts < step.end),
        key=lambda row: (row.ts, -row.dur),
    )
    index: dict[str, int] = {}
    table: dict[str, list[int]] = defaultdict(list)
    between: dict[str, list[tuple[tuple[int, int], ...]]] = defaultdict(list)
    ops = list(_ops(main, frozenset(phases)))
    for op in ops:
        table[f"{op.phase}|{op.name}"].append(index.setdefault(op.line, len(index)))
    for after, us_of_calls in _times_between(_edges(step, main, ops, frozenset(phases))):
        shares = _percentages(us_of_calls)
        between[after].append(tuple((index.setdefault(line, len(index)), percent) for line, percent in shares))
    return SourceLines(
        tuple(index),
        {key: tuple(indices) for key, indices in table.items()},
        {key: tuple(parts) for key, parts in between.items()},
    )


def kept_facts(rows: Sequence[TraceRow], device: str) -> dict[str, str | int]:
    """Return how many bytes of a device the last step allocates beyond what it frees, and the line of most of these.

    What it frees of an earlier step counts against the line that allocated it there.
    """
    step = _last_step(rows)
    lines, line = dict[int, str](), ""
    kept = Counter[str]()
    for row in sorted(rows, key=lambda row: row.ts):
        if row.name.startswith(PREFIX):
            _, line = marked_place(row.name)
        elif row.args.size and row.args.device_type == _DEVICE_TYPES.get(device):
            of_line = line if row.args.size > 0 else lines.pop(row.args.address, "")
            if row.args.size > 0:
                lines[row.args.address] = line
            if step is not None and step.ts <= row.ts < step.end:
                kept[of_line] += row.args.size
    num_bytes = kept.total()
    return {KEPT_BYTES: num_bytes, KEPT_LINE: kept.most_common(1)[0][0]} if num_bytes > 0 else {}


def _last_step(rows: Sequence[TraceRow]) -> TraceRow | None:
    steps = (row for row in rows if row.name.startswith(_STEP) and row.cat == "user_annotation")
    return max(steps, key=lambda row: row.ts, default=None)


def _ops(rows: Sequence[TraceRow], phases: frozenset[str]) -> Iterator[_Op]:
    """Yield the outermost ops in order of time; `rows` is sorted by start, parents before children.

    An op in which lines of Python run, as those of a hook in a backward pass, is of the one that takes most of it.
    """
    marks = [row for row in rows if row.cat == "cpu_op" and row.name.startswith(PREFIX)]
    begins, lines = [mark.ts for mark in marks], ["", *(marked_place(mark.name)[1] for mark in marks)]
    phase, phase_end, op_end = OTHER, 0.0, 0.0
    for row in rows:
        if row.ts >= phase_end:
            phase = OTHER
        if row.cat == "user_annotation" and row.name in phases and phase == OTHER:
            phase, phase_end = row.name, row.end
        elif row.cat == "cpu_op" and row.ts >= op_end and not row.name.startswith(PREFIX):
            op_end = row.end
            first, last = bisect_right(begins, row.ts), bisect_left(begins, row.end)
            edges = pairwise([row.ts, *begins[first:last], row.end])
            us_of_line = _sums((lines[first + index], end - begin) for index, (begin, end) in enumerate(edges))
            yield _Op(phase, row.name, max(us_of_line, key=lambda line: us_of_line[line]), row.ts, row.end)


def _edges(step: TraceRow, rows: Iterable[TraceRow], ops: Iterable[_Op], phases: frozenset[str]) -> list[_Edge]:
    """Return where lines, ops and phases begin and end on the main thread, in order of time."""
    edges = [_Edge(step.ts, 0, "|"), _Edge(step.end, 2)]
    for op in ops:
        order = 0 if op.end > op.begin else 3  # one without a duration ends after its begin
        edges += [_Edge(op.begin, 2), _Edge(op.end, order, f"{op.phase}|{op.name}")]
    phase_end = 0.0
    for row in rows:
        if row.cat == "cpu_op" and row.name.startswith(PREFIX):
            depth, line = marked_place(row.name)
            edges.append(_Edge(row.ts, 1, line=line, depth=depth))
        elif row.cat == "user_annotation" and row.name in phases and row.ts >= phase_end:
            phase_end = row.end
            edges += [_Edge(row.ts, 1, f"{row.name}|"), _Edge(row.end, 0, f"|{row.name}")]
    return sorted(edges, key=lambda edge: edge[:2])


def _times_between(edges: Sequence[_Edge]) -> Iterator[tuple[str, Mapping[Calls, float]]]:
    """Yield (what comes before, us by lines that call each other) of each time in no op.

    What a mark itself costs, the shortest time between two of them, is left out: it would make many short lines look
    longer than one that waits.
    """
    marks = [edge.ts for edge in edges if edge.line is not None]
    mark_us = min((second - first for first, second in pairwise(marks)), default=0.0)
    after, calls = "", Calls()
    us_of_calls: dict[Calls, float] = {}
    depths: list[int] = []
    for edge, following in pairwise(edges):
        if edge.line is not None:
            while depths and depths[-1] >= edge.depth:
                depths.pop()
            calls = (*calls[: len(depths)], edge.line)
            depths.append(edge.depth)
        else:
            if after:
                yield after, us_of_calls
            after, us_of_calls = edge.after, {}
        if after:
            us = following.ts - edge.ts - (mark_us if edge.line is not None else 0.0)
            us_of_calls[calls] = us_of_calls.get(calls, 0.0) + max(us, 0.0)
    if after:
        yield after, us_of_calls


def _percentages(us_of_calls: Mapping[Calls, float]) -> list[tuple[str, int]]:
    """Return the share of each function in order, by its line with the most time; the largest alone of a short time.

    Functions with less than that are the time of the line that calls them.
    """
    total = sum(us_of_calls.values())
    if not total:
        return []
    if total >= _LEAST_SPLIT_US:
        us_of_calls = _without_short_functions(us_of_calls, total * _LEAST_PERCENT / 100)
    us_of_line = _sums((calls[-1] if calls else "", us) for calls, us in us_of_calls.items())
    us_of_function = _sums((line_function(line), us) for line, us in us_of_line.items())
    line_of: dict[str, str] = {}
    for line in us_of_line:
        function = line_function(line)
        line_of[function] = max(line_of.get(function, line), line, key=lambda each: us_of_line[each])
    largest = max(us_of_function, key=lambda function: us_of_function[function])
    if total < _LEAST_SPLIT_US:
        return [(line_of[largest], 100)]
    shares = {function: round(100 * us / total) for function, us in us_of_function.items()}
    shares = {function: percent for function, percent in shares.items() if percent >= _LEAST_PERCENT}
    shares[largest] = shares.get(largest, 0) + 100 - sum(shares.values())
    return [(line_of[function], percent) for function, percent in shares.items()]


def _without_short_functions(us_of_calls: Mapping[Calls, float], least_us: float) -> dict[Calls, float]:
    """Return the times with those of functions that have less than `least_us` in the lines that call them."""
    times = dict(us_of_calls)
    for depth in range(max(map(len, times)), 1, -1):
        us_of_function = _sums((line_function(calls[-1]), us) for calls, us in times.items() if calls)
        for calls in [each for each in times if len(each) == depth]:
            if us_of_function[line_function(calls[-1])] < least_us:
                times[calls[:-1]] = times.get(calls[:-1], 0.0) + times.pop(calls)
    return times


def _sums(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum by name, in order of the first of each."""
    sums: dict[str, float] = {}
    for name, us in parts:
        sums[name] = sums.get(name, 0.0) + us
    return sums
