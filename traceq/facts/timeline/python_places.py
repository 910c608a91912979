"""Innermost annotation, module and Python line around the host while it is in no op."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import lacks_host_ops
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, nest, python_frames, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.lines_between_ops import LinesBetweenOps, lines_between_ops
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, sorted_unique
from traceq.model import Category, Trace

_STEP = re.compile(r"^ProfilerStep#\d+$")
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
    rows = rows[~matching(trace.events, rows, _STEP) & ~matching(trace.events, rows, of_phases)]
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
