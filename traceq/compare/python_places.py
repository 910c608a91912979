"""Where the host is while it is in no op: the innermost annotation, module and line of Python around each instant."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, nest, python_frames, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.phases import phases
from traceq.grouping import group
from traceq.intervals import Spans
from traceq.model import Category, Trace

__all__ = ["PythonPlace", "PythonPlaces", "python_places"]

_STEP = re.compile(r"^ProfilerStep#\d+$")
_STRUCTURE = re.compile(rf"^({LOADER}|Optimizer\.(step|zero_grad))#")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_BETWEEN = "Python between ops"


@dataclass(frozen=True, slots=True)
class PythonPlace:
    """`name` is `Python in <annotation>`, with N for numbers, which count steps and layers; `line` and `module` are ""
    where the trace does not tell.
    """

    name: str
    line: str
    module: str


@dataclass(frozen=True, slots=True, eq=False)
class PythonPlaces:
    """`places`, the first of which is nowhere in particular; by track the parts of time, and int64[M] into `places`."""

    places: tuple[PythonPlace, ...]
    parts: dict[int, Spans]
    place: dict[int, NDArray[np.int64]]


@once_per_trace
def python_places(trace: Trace) -> PythonPlaces:
    """Every thread that has annotations or Python frames, cut where one of them begins or ends."""
    places = {PythonPlace(_BETWEEN, "", ""): 0}
    parts, place = {}, {}
    marks = _annotations(trace)
    for number in sorted(marks.keys() | python_frames(trace).keys()):
        edges = np.unique(np.concatenate([_edges(nests.get(number)) for nests in (marks, python_frames(trace))]))
        parts[number] = np.column_stack([edges[:-1], edges[1:]])
        place[number] = _places(trace, number, parts[number], marks.get(number), places)
    return PythonPlaces(tuple(places), parts, place)


def _annotations(trace: Trace) -> dict[int, Nest]:
    """Nests of the annotations by track, without steps and what tells the phases: those are known anyway."""
    rows, found = trace.events.rows(Category.ANNOTATION), phases(trace)
    names = re.compile("^(" + "|".join(map(re.escape, found.names)) + ")$")
    tells = _STRUCTURE if found.rule == "structure" else names
    rows = rows[~matching(trace.events, rows, _STEP) & ~matching(trace.events, rows, tells)]
    of_row = tracks(trace)[rows]
    return {number: nest(trace.events, rows[of_row == number]) for number in np.unique(of_row).tolist()}


def _edges(found: Nest | None) -> NDArray[np.int64]:
    return np.empty(0, np.int64) if found is None else np.r_[found.start, found.end]


def _places(
    trace: Trace, number: int, parts: Spans, marks: Nest | None, places: dict[PythonPlace, int]
) -> NDArray[np.int64]:
    """int64[M]: the place of each part, new ones added to `places`."""
    origin = origins(trace, np.full(len(parts), number), parts[:, 0], parts[:, 1])
    name = np.full(len(parts), -1)
    if marks is not None:
        around = marks.at(parts[:, 0])
        name = np.where(around >= 0, trace.events.name[marks.rows[around]], -1)
    found = group([name, origin.line, origin.module])
    known = []
    for mark, line, module in found.keys.tolist():
        said = f"Python in {_NUMBER.sub('N', trace.events.strings[mark])}" if mark >= 0 else _BETWEEN
        known.append(places.setdefault(PythonPlace(said, origin.texts[line], origin.texts[module]), len(places)))
    of_part: NDArray[np.int64] = np.array(known, np.int64)[found.of_row]
    return of_part
