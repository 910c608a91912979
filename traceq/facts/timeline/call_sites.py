"""Where in the program a host instant comes from: op, module, Python line.

The line is that of the innermost frame outside the libraries that only pass calls on: from Python stacks in the trace,
else from the `Call stack` of an op (2021), else from the table that a recording of traceq embeds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching, names_of
from traceq.facts.events.nesting import Nest, host_ops, python_frames
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.intervals import sorted_unique
from traceq.model import CallStacks, Category, Trace

__all__ = ["CLOCK_SKEW_NS", "Origins", "origins", "source_line", "user_line"]

CLOCK_SKEW_NS = 30_000

_COPYING_OP = re.compile(r"^aten::(copy_|_local_scalar_dense|nonzero)$")
_FRAME = re.compile(r"^(?P<path>.*\.py)\((?P<line>\d+)\): (?P<function>.*)$")
_PASSES_ON = re.compile(
    r"(^|/)(torch|torch_xla|accelerate|tqdm|multiprocessing|concurrent|asyncio|importlib|traceq/recorder)/"
    r"|(^|/)lib/python3\.\d+/(?!(site|dist)-packages/)"
    r"|(^|/)(threading|contextlib|functools|runpy|typing|weakref|warnings|inspect|abc|enum|dataclasses|copy)\.py\("
)
_MODULE = re.compile(r"^nn\.Module: ")


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """For K calls: `op`, `module`, `line` int64[K] into `texts`; "" where the trace does not tell."""

    texts: tuple[str, ...]
    op: NDArray[np.int64]
    module: NDArray[np.int64]
    line: NDArray[np.int64]


def origins(
    trace: Trace,
    track: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    rows: NDArray[np.int64] | None = None,
    copies: NDArray[np.bool_] | None = None,
    innermost: NDArray[np.int64] | None = None,
) -> Origins:
    """Op, module and line of host calls [start, end) ns on their threads.

    `rows` int64[K] are the calls' rows of Events: an op of the same external id close by made the call (in 2023 those
    ids of ops and of calls are not the same). Else the op is found by time, or is `innermost` (int64[K], an index into
    the thread's nest of host_ops); that of a call that `copies` (bool[K]) also a little before or after it.
    """
    made_by = None if rows is None else _op_of_the_same_id(trace, rows)
    texts: dict[str, int] = {"": 0}
    op, module, line = (np.zeros(len(track), np.int64) for _ in range(3))
    has_lines = len(trace.events.stacks.row) > 0 or trace.lines is not None
    for number in sorted_unique(track).tolist():
        mine = np.flatnonzero(track == number)
        ops = host_ops(trace).get(number)
        frames = python_frames(trace).get(number)
        middle = start[mine] + (end[mine] - start[mine] >> 1)
        if ops is not None:
            found = ops.at(middle) if innermost is None else innermost[mine]
            if made_by is not None:
                by_id = ops.index_of(made_by[mine])
                found = np.where(by_id >= 0, by_id, found)
            copying = matching(trace.events, ops.rows, _COPYING_OP)
            around = ops.first_enclosing(found, copying)
            found = np.where(around >= 0, around, found)
            if copies is not None:
                lost = np.flatnonzero((found < 0) & copies[mine])
                found[lost] = _close_by(ops, copying, start[mine[lost]], end[mine[lost]])
            op[mine] = _names(trace, ops, found, texts)
            if has_lines:
                line[mine] = _lines_of_ops(trace, number, ops, found, texts)
        if frames is not None:
            line[mine] = _or(_user_lines(trace, frames, middle, texts), line[mine])
            module[mine] = _modules(trace, frames, middle, texts)
    return Origins(tuple(texts), op, module, line)


def source_line(frame: str) -> str:
    """`path/file.py(41): check` as `file.py:41 check`; "" for anything that is no Python frame."""
    found = _FRAME.match(frame)
    if found is None:
        return ""
    return f"{found['path'].rpartition('/')[2]}:{found['line']} {found['function']}"


def _or(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(first > 0, first, second)


def _number(texts: dict[str, int], text: str) -> int:
    return texts.setdefault(text, len(texts))


def _op_of_the_same_id(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row of the op with the external id of each call, -1 where there is none."""
    ids, ops = _ops_by_id(trace)
    if len(ids) == 0:
        return np.full(len(rows), -1)
    wanted = trace.events.external_id[rows]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    start, ts, end = trace.events.ts[rows], trace.events.ts[ops[at]], trace.events.end[ops[at]]
    close = (ts - CLOCK_SKEW_NS <= start) & (start <= end + CLOCK_SKEW_NS)
    return np.where((rows >= 0) & (wanted > 0) & (ids[at] == wanted) & close, ops[at], -1)


@once_per_trace
def _ops_by_id(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(external ids ascending, rows of the ops that carry them)."""
    ops = trace.events.rows(Category.CPU_OP)
    ops = ops[trace.events.external_id[ops] > 0]
    ops = ops[np.argsort(trace.events.external_id[ops], kind="stable")]
    return trace.events.external_id[ops], ops


def _close_by(
    ops: Nest, wanted: NDArray[np.bool_], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Index of the op that is `wanted` (bool[M]) shortly before each call, else shortly after it, -1 without one."""
    before, after = (ops.first_enclosing(ops.at(at), wanted) for at in (start - CLOCK_SKEW_NS, end + CLOCK_SKEW_NS))
    return np.where(before >= 0, before, after)


def _names(trace: Trace, ops: Nest, found: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Text number of the name of each op found."""
    looks_at_all = len(found) > len(ops.rows)  # each once, then
    names, inverse = names_of(trace.events, ops.rows if looks_at_all else ops.rows[found])
    numbers = np.array([_number(texts, trace.events.strings[name]) for name in names.tolist()], np.int64)
    of_found = numbers[inverse][found] if looks_at_all else numbers[inverse]
    return np.where(found >= 0, of_found, 0)


def _user_lines(trace: Trace, frames: Nest, at: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Line of the innermost frame of the user's own at each instant."""
    events = trace.events
    own = matching(events, frames.rows, _FRAME) & ~matching(events, frames.rows, _PASSES_ON)
    found = frames.first_enclosing(frames.at(at), own)
    names, inverse = names_of(events, frames.rows[found])
    numbers = np.array([_number(texts, source_line(events.strings[name])) for name in names.tolist()], np.int64)
    return np.where(found >= 0, numbers[inverse], 0)


def _modules(trace: Trace, frames: Nest, at: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Innermost nn.Module at each instant."""
    events = trace.events
    found = frames.first_enclosing(frames.at(at), matching(events, frames.rows, _MODULE))
    names, inverse = names_of(events, frames.rows[found])
    numbers = [_number(texts, events.strings[name].removeprefix("nn.Module: ")) for name in names.tolist()]
    return np.where(found >= 0, np.array(numbers, np.int64)[inverse], 0)


def _lines_of_ops(
    trace: Trace, track: int, ops: Nest, found: NDArray[np.int64], texts: dict[str, int]
) -> NDArray[np.int64]:
    """Line of each op found, by its own or an enclosing op's call stack, else by the embedded table."""
    line = np.zeros(len(found), np.int64)
    if len(trace.events.stacks.row):
        line = _stack_lines(trace, trace.events.stacks, ops, found, texts)
    if trace.lines is not None and track == main_track(trace):
        line = _or(line, _embedded_lines(trace, ops, found, texts))
    return line


def _stack_lines(
    trace: Trace, stacks: CallStacks, ops: Nest, found: NDArray[np.int64], texts: dict[str, int]
) -> NDArray[np.int64]:
    sorted_unique, inverse = np.unique(stacks.text, return_inverse=True)
    lines = [_number(texts, user_line(trace.events.strings[text].split(";"))) for text in sorted_unique.tolist()]
    of_row = np.zeros(len(trace.events), np.int64)
    of_row[stacks.row] = np.array(lines, np.int64)[inverse]
    of_op = of_row[ops.rows]
    around = ops.first_enclosing(found, of_op > 0)
    return np.where(around >= 0, of_op[around], 0)


def user_line(frames: Sequence[str]) -> str:
    """`file.py:41 check` of the innermost user frame among `path/file.py(41): check`, innermost first; "" without."""
    own = (frame for frame in frames if _FRAME.match(frame) and not _PASSES_ON.search(frame))
    return source_line(next(own, ""))


def _embedded_lines(trace: Trace, ops: Nest, found: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Line of the outermost op around each op found, as the n-th of its name in its phase and step."""
    assert trace.lines is not None
    top = ops.top()[found]
    key, occurrence = _occurrences(trace)
    names = phases(trace).names
    numbers = [_number(texts, line) for line in trace.lines.lines]
    table: dict[int, NDArray[np.int64]] = {}
    line = np.zeros(len(found), np.int64)
    for code in sorted_unique(key[top[found >= 0]]).tolist():
        phase, name = divmod(code, len(trace.events.strings))
        known = trace.lines.table.get(f"{names[phase]}|{trace.events.strings[name]}", ())
        table[code] = np.array([numbers[i] for i in known], np.int64)
        mine = np.flatnonzero((found >= 0) & (key[top] == code))
        nth = occurrence[top[mine]]
        if len(table[code]):
            line[mine] = np.where(nth < len(table[code]), table[code][np.minimum(nth, len(table[code]) - 1)], 0)
    return line


@once_per_trace
def _occurrences(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For the main thread's ops: (phase and name as one number, n-th outermost op of that key within its step)."""
    ops = host_ops(trace)[main_track(trace)]
    outermost = np.flatnonzero(ops.parent < 0)
    key = phases(trace).at(ops.start) * len(trace.events.strings) + trace.events.name[ops.rows]
    step = np.searchsorted(steps(trace).host[:, 0], ops.start, "right")
    occurrence = np.zeros(len(key), np.int64)
    order = outermost[np.lexsort((outermost, key[outermost], step[outermost]))]
    group = np.flatnonzero(np.diff(np.column_stack([step, key])[order], axis=0, prepend=-1).any(axis=1))
    occurrence[order] = np.arange(len(order)) - np.repeat(group, np.diff(np.r_[group, len(order)]))
    return key, occurrence
