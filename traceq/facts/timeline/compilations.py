"""Times at which threads compile, with the function and the number of its compilation where the trace has them."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching, rows_named
from traceq.facts.events.nesting import host_ops, python_frames, thread_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track, on_main_thread
from traceq.frozen import frozen
from traceq.intervals import Spans, spans, subtract, union
from traceq.model import Category, Manifest, Trace

_ID = re.compile(r"\bcompile_id=([^,]+)")
"""Metadata of a range: frame and number of its compilation, as in the `Torch-Compiled Region: 3/7` that results."""
_REGION = re.compile(r"^Torch-Compiled Region: ")
_AUTOGRAD_FUNCTION = re.compile(r"^CompiledFunction$")
_COMPILED = "compiled"
"""Key of a manifest's environment: a JSON list of what was compiled since steps are timed."""
PASSES = ("forward", "backward", "other")
"""What is compiled: the code of a function, its backward pass, at its first run, or neither, as in autotuning."""
_FORWARD = re.compile(r"^(dynamo|entire_frame_compile)$|^(_compile|compile_inner)\b")
_BACKWARD = re.compile(r"^entire_backward_compile$|\b_backward_impl\b|\bbw_compiler\b")
_FRAME = re.compile(r"(?:^|[/()])(?P<file>[^/()]+)\((?P<line>\d+)\): (?P<function>.+)$")


@frozen(eq=False)
class Compilations:
    """N times that a thread compiles, by start: the outermost ranges of torch.compile.

    `rows` int64[N] into Events; `track`, `start`, `end` int64[N] ns; `of_pass` int64[N] into PASSES. `compile_ids`: N
    texts such as `0/7`, the eighth compilation of the first frame that was compiled, "" where unknown; `functions`: N
    texts such as `train.py:14 forward`, known by the Python frames that run the compiled code, else "";
    `shapes`: N texts of the inputs of its first run as the trace writes them, known with record_shapes and a backward
    pass, else "".
    """

    rows: NDArray[np.int64]
    track: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    of_pass: NDArray[np.int64]
    compile_ids: tuple[str, ...]
    functions: tuple[str, ...]
    shapes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)


class Recompiled(Struct, frozen=True):
    """A function that a recording saw recompile since steps are timed, as its manifest has it.

    `reason`: the guard that failed last, with the line it guards and a hint behind `#`.
    """

    name: str
    file: str
    line: int
    reason: str

    @property
    def function(self) -> str:
        """`train.py:14 forward`."""
        return f"{self.file.rpartition('/')[2]}:{self.line} {self.name}"

    @property
    def guard(self) -> str:
        """`self.t == 48`, which no longer held."""
        return self.reason.partition("#")[0].strip()


def recompiled(manifest: Manifest | None) -> list[Recompiled]:
    """Return the functions that recompiled, the one that took longest first; none of what was compiled once."""
    text = str(manifest.environment.get(_COMPILED, "[]")) if manifest else "[]"
    try:
        return [each for each in msgspec.json.decode(text, type=list[Recompiled]) if each.reason and each.name]
    except msgspec.MsgspecError:
        return []


@once_per_trace
def compilations(trace: Trace) -> Compilations:
    """Return when threads compile; on each thread the times are disjoint."""
    events, rows = trace.events, trace.events.rows(Category.COMPILING)
    none = np.empty(0, np.int64)
    outermost = np.concatenate([none, *(nest.rows[nest.parent < 0] for nest in thread_nests(trace, rows).values())])
    outermost = events.by_start(outermost)
    track = tracks(trace)[outermost]
    ids = _compile_ids(trace, outermost, track)
    regions = _first_runs(trace) if len(outermost) else {}
    functions = {compile_id.partition("/")[0]: _function(trace, row) for compile_id, row in regions.items()}
    return Compilations(
        rows=outermost,
        track=track,
        start=events.ts[outermost],
        end=events.end[outermost],
        of_pass=np.where(matching(events, outermost, _FORWARD), 0, 2 - matching(events, outermost, _BACKWARD)),
        compile_ids=ids,
        functions=tuple(functions.get(compile_id.partition("/")[0], "") for compile_id in ids),
        shapes=tuple(_input_shapes(trace, regions[each]) if each in regions else "" for each in ids),
    )


@once_per_trace
def compiling(trace: Trace) -> Spans:
    """Return when the host compiles: its main thread, or another one while that is in no op, as in backward."""
    every, events = compilations(trace), trace.events
    on_main = every.track == main_track(trace)
    of_main = spans(every.start[on_main], every.end[on_main])
    if on_main.all():
        return of_main
    rows = on_main_thread(trace, events.rows(Category.CPU_OP, Category.RUNTIME))
    others = spans(every.start[~on_main], every.end[~on_main])
    return union(of_main, subtract(others, spans(events.ts[rows], events.end[rows])))


def _compile_ids(trace: Trace, outermost: NDArray[np.int64], track: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the id in the first metadata inside each outermost range."""
    events, rows = trace.events, trace.events.by_start(rows_named(trace.events, _ID, Category.COMPILING))
    ids = [""] * len(outermost)
    for number in set(track.tolist()):
        ranges, noted = np.flatnonzero(track == number), rows[tracks(trace)[rows] == number]
        around, first = np.unique(np.searchsorted(events.ts[outermost[ranges]], events.ts[noted], "right") - 1, True)
        for index, row in zip(ranges[around].tolist(), noted[first].tolist(), strict=True):
            match = _ID.search(events.text(row))
            ids[index] = match[1] if match else ""
    return tuple(ids)


def _first_runs(trace: Trace) -> dict[str, int]:
    """Return compile id -> row of the region in which the compiled code first runs in the trace."""
    events, rows = trace.events, rows_named(trace.events, _REGION, Category.CPU_OP, Category.ANNOTATION)
    first = rows[np.unique(events.name[rows], return_index=True)[1]]
    return {events.text(row).partition(": ")[2]: row for row in first.tolist()}


def _function(trace: Trace, region: int) -> str:
    """Return `train.py:14 forward`: the first Python frame inside a region; "" without."""
    events, frames = trace.events, python_frames(trace).get(int(tracks(trace)[region]))
    if frames is None:
        return ""
    index = int(np.searchsorted(frames.start, events.ts[region]))
    if index == len(frames.start) or frames.end[index] > events.end[region]:
        return ""
    match = _FRAME.search(events.text(int(frames.rows[index])))
    return f"{match['file']}:{match['line']} {match['function']}" if match else ""


def _input_shapes(trace: Trace, region: int) -> str:
    """Return the shapes of all inputs of a region, parameters among them, which those of its autograd function are."""
    events, ops = trace.events, host_ops(trace).get(int(tracks(trace)[region]))
    if ops is None:
        return ""
    inside = ops.rows[np.searchsorted(ops.start, events.ts[region]) : np.searchsorted(ops.start, events.end[region])]
    inside = inside[matching(events, inside, _AUTOGRAD_FUNCTION) & (events.shapes[inside] >= 0)]
    return events.strings[events.shapes[inside[0]]] if len(inside) else ""
