"""What made one rank later than the others: the cell of its step that is longer than theirs, and what is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, host_ops, nest, tracks
from traceq.facts.ranks.job import RankQuery
from traceq.facts.timeline.blocking_calls import blocking_calls
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import Activity, TimeCategory, activity, in_counted_steps, ns_by_phase
from traceq.grouping import group
from traceq.intervals import Spans, intersect, measure, measure_within, spans, subtract
from traceq.model import Category, Trace

__all__ = ["Lateness", "PhaseCategory", "busy_ns", "cells_of", "lateness"]

_NOT_A_CAUSE = (TimeCategory.EXPOSED_COMM, TimeCategory.TAIL)
_COMPUTES = (TimeCategory.COMPUTE, TimeCategory.CPU_COMPUTE)
_ON_DEVICE = (TimeCategory.COMPUTE, TimeCategory.EXPOSED_MEMCPY, TimeCategory.LAUNCH_LATENCY)
_IN_A_CALL = (TimeCategory.SYNC_WAIT, TimeCategory.ALLOC_WAIT)
PYTHON = "Python"
_IN_MARK = "Python in "

_MOST_OTHERS = 16
"""Ranks that the late one is compared with in detail; where there are more, so many from the first to the last."""

PhaseCategory = tuple[str, int]
"""(phase, Doing)."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """A rank's `phase` and `category` take `excess_ns` a step more than on the median of the others; in it `what`, a
    kernel, a call, a host op or Python, takes `what_excess_ns` more; `line` where the trace tells; `before` the op that
    follows the longest stay in Python, "" for anything else.
    """

    phase: str
    category: str
    excess_ns: int
    what: str
    what_excess_ns: int
    line: str
    before: str


def busy_ns(cells: Mapping[PhaseCategory, float]) -> int:
    """Time of a counted step in which the rank itself computes, ns."""
    return round(sum(ns for (_, doing), ns in cells.items() if doing in _COMPUTES))


def lateness(look: RankQuery, cells: Mapping[int, Mapping[PhaseCategory, float]], late: int) -> Lateness | None:
    """The largest excess of the late rank, by the cells of all; None where no cell of its is longer than the others'.

    What is in that cell is looked up on that rank and on _MOST_OTHERS at most.
    """
    own, theirs = cells[late], [told for rank, told in cells.items() if rank != late]
    excess = {cell: ns - _median([told.get(cell, 0.0) for told in theirs]) for cell, ns in own.items()}
    cell = max((cell for cell in excess if cell[1] not in _NOT_A_CAUSE), key=lambda cell: excess[cell], default=None)
    if cell is None or excess[cell] <= 0:
        return None
    others = [rank for rank in cells if rank != late]
    spread = np.unique(np.linspace(0, len(others) - 1, min(len(others), _MOST_OTHERS)).round().astype(np.int64))
    mine, *contents = look(_contents, [(late, cell), *((others[at], cell) for at in spread.tolist())])
    inside = {what: ns - _median([told.get(what, 0.0) for told in contents]) for what, ns in mine.items()}
    what = max(inside, key=lambda name: inside[name], default="")
    line, before = look(_where, [(late, (cell, what))])[0]
    phase, doing = cell[0], TimeCategory(cell[1]).name.lower()
    return Lateness(phase, doing, round(excess[cell]), what, round(inside.get(what, 0.0)), line, before)


def cells_of(trace: Trace) -> dict[PhaseCategory, float]:
    """Ns of a counted step by phase and category."""
    ns, names, num = ns_by_phase(trace), phases(trace).names, int(steps(trace).counted.sum())
    cells = np.argwhere(ns > 0).tolist()
    return {(names[phase], doing): int(ns[phase, doing]) / num for phase, doing in cells}


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0


def _pieces(trace: Trace, cell: PhaseCategory) -> tuple[NDArray[np.int64], int]:
    """(indices of the pieces of activity of a cell in counted steps, number of those steps)."""
    done, inside, names = activity(trace), in_counted_steps(trace), phases(trace).names
    num = int(steps(trace).counted.sum())
    if cell[0] not in names:
        return np.empty(0, np.int64), num
    return np.flatnonzero(inside & (done.phase == names.index(cell[0])) & (done.doing == cell[1])), num


def _contents(trace: Trace, cell: PhaseCategory) -> dict[str, float]:
    """Ns of a counted step by what a cell is made of."""
    done, (pieces, num) = activity(trace), _pieces(trace, cell)
    if cell[1] in _ON_DEVICE:
        rows = device_work(trace).rows[done.owner[pieces]]
    elif cell[1] in _IN_A_CALL:
        rows = blocking_calls(trace).rows[done.call[pieces]]
    else:
        return {name: ns / num for name, ns in _host_ops(trace, done, pieces).items()}
    sums = group([trace.events.name[rows]])
    totals = zip(sums.keys[:, 0].tolist(), sums.sum(done.ns[pieces]), strict=True)
    return {trace.events.strings[name]: ns / num for name, ns in totals}


def _cell_spans(done: Activity, pieces: NDArray[np.int64]) -> Spans:
    return spans(done.parts[pieces, 0], done.parts[pieces, 1])


def _host_ops(trace: Trace, done: Activity, pieces: NDArray[np.int64]) -> dict[str, int]:
    """Ns that the main thread spent in each of its outermost ops within the pieces, and between them in Python, told
    apart by the innermost annotation around it.
    """
    wanted = _cell_spans(done, pieces)
    top = _outermost(trace)
    between = subtract(wanted, spans(trace.events.ts[top], trace.events.end[top]))
    marks = _annotations(trace)
    alone = measure_within(between, marks.start, marks.end)
    inner = np.flatnonzero(marks.parent >= 0)
    np.subtract.at(alone, marks.parent[inner], measure_within(between, marks.start[inner], marks.end[inner]))
    found = _by_name(trace, top, measure_within(wanted, trace.events.ts[top], trace.events.end[top]))
    found |= {_IN_MARK + name: ns for name, ns in _by_name(trace, marks.rows, alone).items()}
    return found | {PYTHON: measure(wanted) - sum(found.values())}


def _by_name(trace: Trace, rows: NDArray[np.int64], ns: NDArray[np.int64]) -> dict[str, int]:
    sums = group([trace.events.name[rows]])
    totals = zip(sums.keys[:, 0].tolist(), sums.sum(ns), strict=True)
    return {trace.events.strings[name]: total for name, total in totals if total}


def _outermost(trace: Trace) -> NDArray[np.int64]:
    """Rows of the main thread's outermost ops."""
    ops = host_ops(trace).get(main_track(trace))
    return ops.rows[ops.parent < 0] if ops is not None else np.empty(0, np.int64)


def _annotations(trace: Trace) -> Nest:
    """The main thread's annotations within the phases."""
    rows = trace.events.rows(Category.ANNOTATION)
    rows = rows[tracks(trace)[rows] == main_track(trace)]
    wide = re.compile("^(ProfilerStep#.*|" + "|".join(map(re.escape, phases(trace).names)) + ")$")
    return nest(trace.events, rows[~matching(trace.events, rows, wide)])


def _where(trace: Trace, asked: tuple[PhaseCategory, str]) -> tuple[str, str]:
    """(line, op that follows) of the longest stay in what made the rank late."""
    cell, what = asked
    return _line(trace, cell, what), _op_after_python(trace, cell, what)


def _line(trace: Trace, cell: PhaseCategory, what: str) -> str:
    """Python line of the longest single stay in what made the rank late; "" where the trace does not tell."""
    done, (pieces, _) = activity(trace), _pieces(trace, cell)
    if cell[1] in _ON_DEVICE or len(pieces) == 0:
        return ""
    if cell[1] in _IN_A_CALL:
        calls = blocking_calls(trace)
        longest = int(done.call[pieces[np.argmax(done.ns[pieces])]])
        track, start, end = int(calls.track[longest]), int(calls.start[longest]), int(calls.end[longest])
    else:
        track, (start, end) = main_track(trace), _longest_stay(trace, _cell_spans(done, pieces), what)
    found = origins(trace, *(np.array([value]) for value in (track, start, end)))
    return found.texts[int(found.line[0])]


def _longest_stay(trace: Trace, wanted: Spans, what: str) -> tuple[int, int]:
    """Start and end of the op or annotation of that name that takes most of the spans; else of the longest span."""
    marks = _annotations(trace).rows if what.startswith(_IN_MARK) else _outermost(trace)
    name = re.compile("^" + re.escape(what.removeprefix(_IN_MARK)) + "$")
    rows = marks[matching(trace.events, marks, name)]
    if len(rows) == 0:
        longest = int(np.argmax(wanted[:, 1] - wanted[:, 0]))
        return int(wanted[longest, 0]), int(wanted[longest, 1])
    within = measure_within(wanted, trace.events.ts[rows], trace.events.end[rows])
    row = int(rows[np.argmax(within)])
    return int(trace.events.ts[row]), int(trace.events.end[row])


def _op_after_python(trace: Trace, cell: PhaseCategory, what: str) -> str:
    """The outermost op that begins where the longest stay in Python, within the annotation it is named by, ends."""
    if not what.startswith(PYTHON) or cell[1] in (*_ON_DEVICE, *_IN_A_CALL):
        return ""
    pieces, _ = _pieces(trace, cell)
    top, marks = _outermost(trace), _annotations(trace).rows
    between = subtract(_cell_spans(activity(trace), pieces), spans(trace.events.ts[top], trace.events.end[top]))
    if what.startswith(_IN_MARK):
        named = marks[matching(trace.events, marks, re.compile(f"^{re.escape(what.removeprefix(_IN_MARK))}$"))]
        between = intersect(between, spans(trace.events.ts[named], trace.events.end[named]))
    if len(between) == 0:
        return ""
    end = between[np.argmax(between[:, 1] - between[:, 0]), 1]
    following = top[trace.events.ts[top] >= end]
    return trace.events.text(int(following[np.argmin(trace.events.ts[following])])) if len(following) else ""
