"""Innermost annotation, module and Python line around the host while it is in no op.

Lines are those of Python frames, else of the table that a recording of traceq embeds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import PROFILER_STEP, lacks_host_ops
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, host_ops, nest, python_frames, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.call_sites import declared_phases, origins
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.frozen import frozen
from traceq.grouping import group, ordinals
from traceq.intervals import Spans, empty, sorted_unique, span_index
from traceq.model import Category, Trace

_WHOLE = 100


@frozen(eq=False)
class LinesBetweenOps:
    """Times in no op with a known line: `parts` int64[M, 2] ns, sorted and disjoint; `line` int64[M] into `lines`."""

    lines: tuple[str, ...]
    parts: Spans
    line: NDArray[np.int64]

    def line_at(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the line at each instant: int64[K], -1 where none is known."""
        index = span_index(self.parts, instants)
        return np.where(index >= 0, self.line[index] if len(self.line) else -1, -1)


@frozen(eq=False)
class _Gaps:
    """Times in no op after something that the table knows.

    `spans` int64[G, 2] ns; `key` int64[G]: what comes before; `ordinal` int64[G]: how often it came before in the step.
    """

    spans: Spans
    key: NDArray[np.int64]
    ordinal: NDArray[np.int64]


@once_per_trace
def lines_between_ops(trace: Trace) -> LinesBetweenOps:
    """Return the embedded lines at the times between ops of all steps, each cut in the proportions of its lines."""
    if trace.lines is None or not trace.lines.between or main_track(trace) not in host_ops(trace):
        return LinesBetweenOps((), empty(), np.empty(0, np.int64))
    table = trace.lines.between
    gaps = _gaps(trace, {key: number for number, key in enumerate(table)})
    num_times = np.array([len(times) for times in table.values()], np.int64)
    times = [parts for times in table.values() for parts in times]
    num_parts = np.array([len(parts) for parts in times], np.int64)
    entries = np.array([part for parts in times for part in parts], np.int64).reshape(-1, 2)
    until = np.cumsum(entries[:, 1])
    listed = np.flatnonzero(gaps.ordinal < num_times[gaps.key])
    time = (np.cumsum(num_times) - num_times)[gaps.key[listed]] + gaps.ordinal[listed]
    gap = np.repeat(np.arange(len(listed)), num_parts[time])
    first = (np.cumsum(num_parts) - num_parts)[time[gap]]
    entry = first + ordinals([gap])
    line, percent = entries[entry].T
    before = until[entry] - percent - (until[first] - entries[first, 1])
    start, end = gaps.spans[listed][gap].T
    parts = np.column_stack([start + (end - start) * edge // _WHOLE for edge in (before, before + percent)])
    is_named = np.array([bool(text) for text in trace.lines.lines], np.bool_)[line]
    order = np.argsort(parts[:, 0], kind="stable")
    order = order[is_named[order] & (parts[order, 1] > parts[order, 0])]
    return LinesBetweenOps(trace.lines.lines, parts[order], line[order])


def _gaps(trace: Trace, numbers: Mapping[str, int]) -> _Gaps:
    """Return the times after ops, phases and the begins of steps, up to the next of them; `numbers` of known keys."""
    ops, labels, host = host_ops(trace)[main_track(trace)], phases(trace), steps(trace).host
    names = declared_phases(trace)
    outermost = np.flatnonzero(ops.parent < 0)
    begin, end = ops.start[outermost], ops.end[outermost]
    timeline, label = (labels.main.parts, labels.main.label) if len(names) > 1 else (empty(), np.empty(0, np.int64))
    phase = labels.main_phase_at(begin) if len(names) > 1 else np.zeros_like(begin)
    distinct = group([phase, trace.events.name[ops.rows[outermost]]])
    keys = [f"{names[number]}|{trace.events.strings[name]}" for number, name in distinct.keys.tolist()]
    after_op = np.array([numbers.get(key, -1) for key in keys], np.int64)[distinct.group_ids]
    after_begin, after_end = (
        np.array([numbers.get(text.format(name), -1) for name in names], np.int64)[label] for text in ("{}|", "|{}")
    )
    edges = (  # of edges at the same time those that end something come first; an op without a duration is both
        (host[:, 1], 0, -1),
        (end, np.where(end > begin, 1, 4), after_op),
        (timeline[:, 1], 1, after_end),
        (host[:, 0], 1, numbers.get("|", -1)),
        (timeline[:, 0], 2, after_begin),
        (begin, 3, -1),
    )
    time = np.concatenate([times for times, _, _ in edges])
    order, key = (np.concatenate([np.broadcast_to(edge[column], len(edge[0])) for edge in edges]) for column in (1, 2))
    sequence = np.lexsort((order, time))
    time, key = time[sequence], key[sequence]
    ordinal = ordinals([np.searchsorted(host[:, 0], time, "right"), key])
    is_known = np.flatnonzero(key[:-1] >= 0)
    return _Gaps(np.column_stack([time[:-1], time[1:]])[is_known], key[is_known], ordinal[is_known])


_STRUCTURE = re.compile(rf"^({LOADER}|Optimizer\.(step|zero_grad))#")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
PYTHON = "Python "
"""First word of the name of every place, where host ops are recorded."""
_BETWEEN, _UNRECORDED = f"{PYTHON}between ops", "unrecorded host ops"
"""Places of the host in no op and no annotation; in a trace without any it may be in either."""


@frozen
class PythonPlace:
    """Place of the host in Python.

    `name` is `Python in <annotation>`, with N for numbers, which count steps and layers; `line` and `module` are ""
    where not recorded.
    """

    name: str
    line: str
    module: str


@frozen(eq=False)
class PythonPlaces:
    """Distinct `places`, the first without annotation; by track the M spans of time and int64[M] into `places`."""

    places: tuple[PythonPlace, ...]
    parts: dict[int, Spans]
    place: dict[int, NDArray[np.int64]]


@once_per_trace
def python_places(trace: Trace) -> PythonPlaces:
    """Return the places of every thread with annotations, Python frames or embedded lines, cut where one ends."""
    places = {PythonPlace(_UNRECORDED if lacks_host_ops(trace) else _BETWEEN, "", ""): 0}
    parts, place = {}, {}
    marks, between = _annotations(trace), lines_between_ops(trace)
    of_main = {main_track(trace): between.parts} if len(between.parts) else {}
    for track in sorted(marks.keys() | python_frames(trace).keys() | of_main.keys()):
        edges = sorted_unique(
            *(_edges(nests.get(track)) for nests in (marks, python_frames(trace))),
            of_main.get(track, between.parts[:0]).ravel(),
        )
        parts[track] = np.column_stack([edges[:-1], edges[1:]])
        lines = between if track in of_main else None
        place[track] = _places(trace, track, parts[track], marks.get(track), lines, places)
    return PythonPlaces(tuple(places), parts, place)


def _annotations(trace: Trace) -> dict[int, Nest]:
    """Return the nests of the annotations by track, without those of steps and phases, which accounts have already."""
    rows, labels = trace.events.rows(Category.ANNOTATION), phases(trace)
    names = re.compile("^(" + "|".join(map(re.escape, labels.names)) + ")$")
    of_phases = _STRUCTURE if labels.rule in ("mixed", "structure") else names
    rows = rows[~matching(trace.events, rows, PROFILER_STEP) & ~matching(trace.events, rows, of_phases)]
    row_track = tracks(trace)[rows]
    return {track: nest(trace.events, rows[row_track == track]) for track in sorted_unique(row_track).tolist()}


def _edges(marks: Nest | None) -> NDArray[np.int64]:
    return np.empty(0, np.int64) if marks is None else np.r_[marks.start, marks.end]


def _places(
    trace: Trace,
    track: int,
    parts: Spans,
    marks: Nest | None,
    between: LinesBetweenOps | None,
    places: dict[PythonPlace, int],
) -> NDArray[np.int64]:
    """int64[M]: index of the place of each span; new ones are added to `places`.

    A line is that of the Python frame, else the embedded one; never that of an op, which may be in the same span.
    """
    no_op = np.full(len(parts), -1)
    origin = origins(trace, np.full(len(parts), track), parts[:, 0], parts[:, 1], innermost=no_op)
    line, texts = origin.line, list(origin.texts)
    if between is not None:
        embedded = between.line_at(parts[:, 0])
        line = np.where((line == 0) & (embedded >= 0), len(texts) + embedded, line)
        texts += between.lines
    name = np.full(len(parts), -1)
    if marks is not None:
        around = marks.innermost_at(parts[:, 0])
        name = np.where(around >= 0, trace.events.name[marks.rows[around]], -1)
    groups = group([name, line, origin.module])
    indices = []
    for mark, number, module in groups.keys.tolist():
        text = f"{PYTHON}in {_NUMBER.sub('N', trace.events.strings[mark])}" if mark >= 0 else _BETWEEN
        indices.append(places.setdefault(PythonPlace(text, texts[number], origin.texts[module]), len(places)))
    place: NDArray[np.int64] = np.array(indices, np.int64)[groups.group_ids]
    return place
