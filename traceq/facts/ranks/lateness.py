"""Cause of one rank's lateness: the cell of its step with the largest excess over the other ranks, and its contents.

A device with a queue of work hides what its host does, but not from the ranks that wait for what it launches late:
where the host itself exceeds the others by more, that is the cause. Its waits for its own device are none of its work:
what holds the device is, which may be work that the trace does not show.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, host_ops, nest, tracks
from traceq.facts.ranks.job import RankQuery
from traceq.facts.roofline.op_work import rank_work
from traceq.facts.timeline.active_thread import launching_threads
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.host_pauses import PAUSES, host_pauses
from traceq.facts.timeline.phases import other_annotations, phases
from traceq.facts.timeline.steps import main_track, on_main_thread, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps, ns_by_phase
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, intersect, measure, measure_within, sorted_unique, spans, subtract
from traceq.model import Trace

_NO_CAUSE = (TimeCategory.EXPOSED_COMM, TimeCategory.TAIL)
_COMPUTES = (TimeCategory.COMPUTE, TimeCategory.CPU_COMPUTE)
_ON_DEVICE = (TimeCategory.COMPUTE, TimeCategory.EXPOSED_MEMCPY, TimeCategory.SPIN_WAIT, TimeCategory.LAUNCH_LATENCY)
_IN_A_CALL = (TimeCategory.SYNC_WAIT, TimeCategory.ALLOC_WAIT)
HOST = "host"
PYTHON = "Python"
_IN_ANNOTATION = "Python in "

_NUMBERED = r": \d+/\d+$"
_NUMBERED_REGION = re.compile(rf"(?<=^Torch-Compiled Region){_NUMBERED}")
"""Each rank numbers its compiled regions in the order in which it compiled them: another one is the same code."""

_MUCH_MORE = 2
"""Times the largest cell's excess from which an excess of the host is the cause."""

_EXPLAINED = 0.5
"""Part of a cell's excess from which its host's excess explains it: less is the cell of ranks that wait meanwhile."""

_MOST_CELLS = 3
"""Cells of the largest excess of which one that is explained is sought."""

_MAX_COMPARED = 16
"""Limit on ranks compared with the late one in detail; of more ranks, as many are spread from first to last."""

PhaseCategory = tuple[str, int]
"""(phase, number of a TimeCategory): one cell of a step."""


@frozen
class Lateness:
    """Largest excess of a late rank over the median of the other ranks.

    `phase` and `category` take `excess_ns` more per step, or the host as a whole ("" and `HOST`); within them `what`, a
    kernel, a call, a host op or Python, takes `what_excess_ns` more; `line`, "" where the trace has none; `before`, the
    op that follows the longest interval in Python, "" for anything else. Where it computes in the phase, `flops_ratio`
    of its ops there to the median of the others: more work, or slower work; 0 where shapes are not recorded.
    """

    phase: str
    category: str
    excess_ns: int
    what: str
    what_excess_ns: int
    line: str
    before: str
    flops_ratio: float = 0.0


def busy_ns(cells: Mapping[PhaseCategory, float]) -> int:
    """Return ns of a counted step in which the rank computes."""
    return round(sum(ns for (_, category), ns in cells.items() if category in _COMPUTES))


def lateness(query: RankQuery, cells: Mapping[int, Mapping[PhaseCategory, float]], late: int) -> Lateness | None:
    """Return the largest excess of the late rank, by the cells of all ranks or the host; None where nothing exceeds.

    What is compared in detail is queried from that rank and from _MAX_COMPARED others at most.
    """
    late_cells, other_cells = cells[late], [times for rank, times in cells.items() if rank != late]
    excess = {cell: ns - _median([times.get(cell, 0.0) for times in other_cells]) for cell, ns in late_cells.items()}
    more = sorted(
        (cell for cell in excess if cell[1] not in _NO_CAUSE and excess[cell] > 0), key=lambda cell: -excess[cell]
    )
    others = [rank for rank in cells if rank != late]
    chosen = sorted_unique(np.linspace(0, len(others) - 1, min(len(others), _MAX_COMPARED)).round().astype(np.int64))
    compared = (late, *(others[index] for index in chosen.tolist()))
    host, host_ns = _largest_excess(query(_named_host_contents, [(rank, None) for rank in compared]))
    if host_ns > _MUCH_MORE * max(map(excess.__getitem__, more), default=0.0):
        line, before = query(_line_and_next_op, [(late, (None, host))])[0]
        return Lateness("", HOST, round(host_ns), host, round(host_ns), line, before)
    causes: list[tuple[float, PhaseCategory, str, float]] = []
    for cell in more[:_MOST_CELLS]:
        if cell[1] == TimeCategory.UNRECORDED:  # no host and no recorded kernel has any part in it
            causes.append((excess[cell], cell, "", 0.0))
            break
        contents = query(_contents, [(rank, cell) for rank in compared])
        what, what_ns = _largest_excess(contents)
        explained_ns = max(_host_excess(contents), what_ns)
        is_explained = (
            cell[1] in (*_ON_DEVICE, *_IN_A_CALL, TimeCategory.COMPILING) or explained_ns >= _EXPLAINED * excess[cell]
        )
        causes.append((excess[cell] if is_explained else explained_ns, cell, what, what_ns))
        if is_explained:
            break
    told_ns, cell, what, what_ns = max(causes, key=lambda cause: cause[0], default=(0.0, ("", 0), "", 0.0))
    if told_ns <= 0:
        return None
    line, before = query(_line_and_next_op, [(late, (cell, what))])[0]
    phase, category = cell[0], TimeCategory(cell[1]).name.lower()
    what_ns = round(min(what_ns, told_ns))
    late_flops, *others_flops = query(_flops, [(rank, phase) for rank in compared]) if cell[1] in _COMPUTES else (0.0,)
    ratio = late_flops / _median(others_flops) if late_flops and all(others_flops) else 0.0
    return Lateness(phase, category, round(excess[cell]), what, what_ns, line, before, ratio)


def _flops(trace: Trace, phase: str) -> float:
    """Return the FLOPs of the ops of a phase per counted step."""
    work = sum(row.step_flops for row in rank_work(trace).rows if row.phase == phase)
    return work / int(steps(trace).counted.sum())


def cells_of(trace: Trace) -> dict[PhaseCategory, float]:
    """Return ns of a counted step by phase and category."""
    ns, names, num = ns_by_phase(trace), phases(trace).names, int(steps(trace).counted.sum())
    cells = np.argwhere(ns > 0).tolist()
    return {(names[phase], category): int(ns[phase, category]) / num for phase, category in cells}


def _largest_excess(contents: Sequence[Mapping[str, float]]) -> tuple[str, float]:
    """Return (name, ns) of what the first rank has most of beyond the median of the others; ("", 0) of nothing."""
    late, *others = contents
    more = {name: ns - _median([times.get(name, 0.0) for times in others]) for name, ns in late.items()}
    return max(more.items(), key=lambda item: item[1], default=("", 0.0))


def _host_excess(contents: Sequence[Mapping[str, float]]) -> float:
    """Return ns that the host of the first rank works longer than the median of the others.

    Of Python outside of annotations only what is more: the host of a rank that waits may be there for it.
    """
    late, *others = ({name: ns for name, ns in of_rank.items() if name != PYTHON} for of_rank in contents)
    python_ns, *of_others = (of_rank.get(PYTHON, 0.0) for of_rank in contents)
    named_ns = sum(late.values()) - _median([sum(of_rank.values()) for of_rank in others])
    return named_ns + max(python_ns - _median(of_others), 0.0)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0


def _pieces(trace: Trace, cell: PhaseCategory) -> tuple[NDArray[np.int64], int]:
    """Return (indices of the partition's pieces in a cell of the counted steps, number of those steps)."""
    partition, inside, names = activity(trace), in_counted_steps(trace), phases(trace).names
    num = int(steps(trace).counted.sum())
    if cell[0] not in names:
        return np.empty(0, np.int64), num
    return np.flatnonzero(inside & (partition.phase == names.index(cell[0])) & (partition.category == cell[1])), num


def _contents(trace: Trace, cell: PhaseCategory) -> dict[str, float]:
    """Return ns of a counted step by what a cell contains: kernels, calls, or host ops and Python; {} of compiling."""
    partition, (pieces, num) = activity(trace), _pieces(trace, cell)
    if cell[1] in _ON_DEVICE:
        rows = device_work(trace).rows[partition.owner[pieces]]
    elif cell[1] in _IN_A_CALL:
        rows = blocking_calls(trace).rows[partition.call[pieces]]
    elif cell[1] == TimeCategory.COMPILING:
        return {}
    else:
        return {name: ns / num for name, ns in _host_op_ns(trace, _spans_of_host(trace, cell)).items()}
    sums = group([trace.events.name[rows]])
    totals = zip(sums.keys[:, 0].tolist(), sums.sum(partition.ns[pieces]), strict=True)
    return {trace.events.strings[name]: ns / num for name, ns in totals}


def _named_host_contents(trace: Trace, _: None) -> dict[str, float]:
    """Return ns of a counted step of the host's by op, and in Python by annotation.

    Without waits for its device. Python outside of annotations is left out: there the main thread may wait for the
    backward pass of another thread.
    """
    host, calls = _host_spans(trace), blocking_calls(trace)
    waits = spans(calls.start[~calls.is_alloc], calls.end[~calls.is_alloc])
    all_ns = _host_op_ns(trace, subtract(host, waits))
    return {name: ns / len(host) for name, ns in all_ns.items() if name != PYTHON}


def _spans_of_host(trace: Trace, cell: PhaseCategory) -> Spans:
    """Return where the host is compared for a cell in which the device waits for it: in its phase, if that is known.

    While others wait for a rank, their devices are in another cell, whatever their hosts do. No waiting call.
    """
    labels, calls = phases(trace), blocking_calls(trace)
    if len(device_work(trace)) and cell[0] in labels.names:
        of_phase = labels.main.parts[labels.main.label == labels.names.index(cell[0])]
        working = subtract(intersect(of_phase, _host_spans(trace)), spans(calls.start, calls.end))
        if len(working):
            return working
    partition, pieces = activity(trace), _pieces(trace, cell)[0]
    return spans(partition.parts[pieces, 0], partition.parts[pieces, 1])


def _host_spans(trace: Trace) -> Spans:
    return steps(trace).host[steps(trace).counted]


def _host_op_ns(trace: Trace, cell_spans: Spans) -> dict[str, int]:
    """Return ns of the host by outermost op within the spans, of Python between them, and of pauses apart.

    Between the ops of the main thread, which may wait for a backward pass, those of the other threads that launch
    count. Python is split by the innermost annotation around it.
    """
    pauses = intersect(cell_spans, host_pauses(trace))
    ns_of, between = Counter({PAUSES: measure(pauses)} if len(pauses) else {}), subtract(cell_spans, pauses)
    for track in launching_threads(trace):
        top = _outermost(trace, track)
        ns_of.update(_ns_by_name(trace, top, measure_within(between, trace.events.ts[top], trace.events.end[top])))
        between = subtract(between, spans(trace.events.ts[top], trace.events.end[top]))
    annotations = _annotations(trace)
    python_ns = measure_within(between, annotations.start, annotations.end)
    inner = np.flatnonzero(annotations.parent >= 0)
    innermost_ns = python_ns.copy()
    np.subtract.at(innermost_ns, annotations.parent[inner], python_ns[inner])
    in_annotation = _ns_by_name(trace, annotations.rows, innermost_ns)
    ns_of.update({_IN_ANNOTATION + name: ns for name, ns in in_annotation.items()})
    return ns_of | {PYTHON: measure(cell_spans) - ns_of.total()}


def _ns_by_name(trace: Trace, rows: NDArray[np.int64], ns: NDArray[np.int64]) -> dict[str, int]:
    sums, result = group([trace.events.name[rows]]), Counter[str]()
    for name, total in zip(sums.keys[:, 0].tolist(), sums.sum(ns), strict=True):
        result[_NUMBERED_REGION.sub("", trace.events.strings[name])] += total
    return {name: total for name, total in result.items() if total}


def _rows_of(trace: Trace, candidates: NDArray[np.int64], what: str) -> NDArray[np.int64]:
    """Return the rows of the ops or annotations that `_ns_by_name` adds up as `what`."""
    name = re.escape(what.removeprefix(_IN_ANNOTATION))
    return candidates[matching(trace.events, candidates, re.compile(f"^{name}$|^{name}{_NUMBERED}"))]


def _outermost(trace: Trace, track: int | None = None) -> NDArray[np.int64]:
    """Return the rows of a thread's outermost ops, without a track of the main thread's."""
    ops = host_ops(trace).get(main_track(trace) if track is None else track)
    return ops.rows[ops.parent < 0] if ops is not None else np.empty(0, np.int64)


def _annotations(trace: Trace) -> Nest:
    """Return the main thread's annotations except step marks and phases."""
    return nest(trace.events, on_main_thread(trace, other_annotations(trace)))


def _line_and_next_op(trace: Trace, cause: tuple[PhaseCategory | None, str]) -> tuple[str, str]:
    """Return (line, op that follows) of the longest interval of what made the rank late, in a cell or on the host."""
    cell, what = cause
    partition = activity(trace)
    pieces = np.empty(0, np.int64) if cell is None else _pieces(trace, cell)[0]
    on_device = (*_ON_DEVICE, TimeCategory.UNRECORDED, TimeCategory.COMPILING)
    if cell is not None and (cell[1] in on_device or len(pieces) == 0):
        return "", ""
    if cell is not None and cell[1] in _IN_A_CALL:
        calls = blocking_calls(trace)
        longest = int(partition.call[pieces[np.argmax(partition.ns[pieces])]])
        return _line_of(trace, int(calls.track[longest]), int(calls.start[longest]), int(calls.end[longest])), ""
    of_host = _host_spans(trace) if cell is None else _spans_of_host(trace, cell)
    longest_of_host = _longest_interval(trace, of_host, what)
    return _line_of(trace, *longest_of_host) if longest_of_host else "", _op_after_python(trace, of_host, what)


def _line_of(trace: Trace, track: int, start: int, end: int) -> str:
    """Return the Python line of an interval on a thread; "" where the trace has none."""
    origin = origins(trace, *(np.array([value]) for value in (track, start, end)))
    return origin.texts[int(origin.line[0])]


def _longest_interval(trace: Trace, of_host: Spans, what: str) -> tuple[int, int, int] | None:
    """Return (track, start, end) of the op or annotation `what` that covers most of the spans, or of Python's longest.

    None where none is in them.
    """
    if what == PYTHON:
        between = _between_ops(trace, of_host)
        longest = int(np.argmax(between[:, 1] - between[:, 0])) if len(between) else -1
        return (main_track(trace), *between[longest].tolist()) if longest >= 0 else None
    of_threads = [_outermost(trace, track) for track in launching_threads(trace)]
    candidates = _annotations(trace).rows if what.startswith(_IN_ANNOTATION) else np.concatenate(of_threads)
    rows = _rows_of(trace, candidates, what)
    within = measure_within(of_host, trace.events.ts[rows], trace.events.end[rows])
    if not within.any():
        return None
    row = int(rows[np.argmax(within)])
    return int(tracks(trace)[row]), int(trace.events.ts[row]), int(trace.events.end[row])


def _between_ops(trace: Trace, of_host: Spans) -> Spans:
    """Return where no thread that launches is in an op."""
    for track in launching_threads(trace):
        top = _outermost(trace, track)
        of_host = subtract(of_host, spans(trace.events.ts[top], trace.events.end[top]))
    return of_host


def _op_after_python(trace: Trace, of_host: Spans, what: str) -> str:
    """Return the outermost op that follows the longest interval in Python, within the annotation that `what` names."""
    if not what.startswith(PYTHON):
        return ""
    top, annotations = _outermost(trace), _annotations(trace).rows
    between = _between_ops(trace, of_host)
    if what.startswith(_IN_ANNOTATION):
        named = _rows_of(trace, annotations, what)
        between = intersect(between, spans(trace.events.ts[named], trace.events.end[named]))
    if len(between) == 0:
        return ""
    end = between[np.argmax(between[:, 1] - between[:, 0]), 1]
    following = top[trace.events.ts[top] >= end]
    return trace.events.text(int(following[np.argmin(trace.events.ts[following])])) if len(following) else ""
