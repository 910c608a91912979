"""Stacks of the host over time: phase, annotations, modules, line and ops of the thread that is at work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import PROFILER_STEP
from traceq.facts.events.forward_ops import is_backward
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, thread_nests, tracks
from traceq.facts.timeline.active_thread import active_thread, launching_threads
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.modules import modules, modules_at
from traceq.facts.timeline.phases import other_annotations, phases
from traceq.facts.timeline.python_places import lines_between_ops
from traceq.facts.timeline.steps import main_track, steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, cut, sorted_unique
from traceq.model import Category, Trace

_DEEPEST = 24
"""Rows inside each other that a stack holds; time in deeper ones belongs to the innermost of these."""


Frame = tuple[str, str]
"""Kind of a frame (phase, annotation, module, line, op) and its name."""


@frozen(eq=False)
class HostPieces:
    """K pieces of time, sorted, in each of which the host's active thread stays at one place.

    `parts` int64[K, 2] ns; `track` int64[K], the active thread; `phase` int64[K]; `module` int64[K] into Modules, -1
    outside all; `line` int64[K] into `lines`, of which the first is "".
    """

    parts: Spans
    track: NDArray[np.int64]
    phase: NDArray[np.int64]
    module: NDArray[np.int64]
    line: NDArray[np.int64]
    lines: tuple[str, ...]


@frozen(eq=False)
class HostStacks:
    """S distinct stacks, outermost frame first, with their time int64[S] ns over `num_steps` counted steps."""

    stacks: tuple[tuple[Frame, ...], ...]
    ns: NDArray[np.int64]
    num_steps: int


def host_pieces(trace: Trace, windows: Spans) -> HostPieces:
    """Return the pieces of some windows of time; while the main thread is in no op, one that launches may be active.

    In a backward op the module is that of its forward op.
    """
    events, between = trace.events, lines_between_ops(trace)
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)
    if len(windows):
        rows = rows[(events.end[rows] > windows[0, 0]) & (events.ts[rows] < windows[-1, 1])]
    edges = sorted_unique(events.ts[rows], events.end[rows], phases(trace).main.parts.ravel(), between.parts.ravel())
    parts, _ = cut(windows, edges)
    time_ns = parts[:, 0].copy()
    active = active_thread(trace, time_ns, _threads(trace))
    origin = origins(trace, active.track, time_ns, time_ns, innermost=active.op)
    embedded = np.where((active.op < 0) & (active.track == main_track(trace)), between.line_at(time_ns), -1)
    line = np.where((origin.line == 0) & (embedded >= 0), len(origin.texts) + embedded, origin.line)
    return HostPieces(
        parts=parts,
        track=active.track,
        phase=phases(trace).phase_at(active.track, time_ns),
        module=modules_at(trace, active.track, time_ns),
        line=line,
        lines=(*origin.texts, *between.lines),
    )


def host_stacks(trace: Trace) -> HostStacks:
    """Return the stacks of the counted steps as the host ran them: their times add up to those steps.

    A stack is a phase, the annotations, the modules, the line, and the ops and runtime calls that are open.
    """
    counted = steps(trace).host[steps(trace).counted]
    pieces = host_pieces(trace, counted)
    time_ns = pieces.parts[:, 0]
    annotations, ops = _Paths(trace, other_annotations(trace)), _Paths(trace, _op_rows(trace))
    groups = group(
        [
            pieces.phase,
            annotations.path_at(pieces.track, time_ns),
            pieces.module,
            pieces.line,
            ops.path_at(pieces.track, time_ns),
        ]
    )
    names, tree = phases(trace).names, modules(trace)
    stacks = []
    for phase, annotation, module, line, op in groups.keys.tolist():
        frames = [("phase", names[phase]), *annotations.frames(annotation, "annotation")]
        frames += [("module", name) for name in _module_names(tree.paths, tree.parent, module)]
        frames += [("line", pieces.lines[line])] if pieces.lines[line] else []
        stacks.append((*frames, *ops.frames(op, "op")))
    ns = groups.totals(pieces.parts[:, 1] - pieces.parts[:, 0])
    return HostStacks(tuple(stacks), ns, len(counted))


def _threads(trace: Trace) -> tuple[int, ...]:
    """Return the tracks of the main thread, of others that launch, and of those of autograd, which on a CPU do not."""
    launching = launching_threads(trace)
    backward = sorted_unique(tracks(trace)[np.flatnonzero(is_backward(trace))]).tolist()
    return (*launching, *(track for track in backward if track not in launching))


def _op_rows(trace: Trace) -> NDArray[np.int64]:
    rows = trace.events.rows(Category.CPU_OP, Category.RUNTIME)
    return rows[~matching(trace.events, rows, PROFILER_STEP)]


def _module_names(paths: Sequence[str], parent: NDArray[np.int64], module: int) -> list[str]:
    """Return the names of a module and those around it, outermost first; [] for -1."""
    names: list[str] = []
    while module >= 0:
        outer = int(parent[module])
        names.insert(0, paths[module].removeprefix(f"{paths[outer]}.") if outer >= 0 else paths[module])
        module = outer
    return names


class _Paths:
    """Distinct paths of rows inside each other, over all threads; a path is a number, -1 outside all rows."""

    def __init__(self, trace: Trace, rows: NDArray[np.int64]) -> None:
        counted = steps(trace).host[steps(trace).counted]
        events = trace.events
        inside = (events.end[rows] > counted[:, 0].min()) & (events.ts[rows] < counted[:, 1].max())
        self._strings = events.strings
        self._nests = thread_nests(trace, rows[inside])
        self._parent, self._name = list[int](), list[int]()
        self._numbers: dict[tuple[int, int], int] = {}
        self._path = {track: self._numbered(nest, events.name[nest.rows]) for track, nest in self._nests.items()}

    def _numbered(self, nest: Nest, name: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the path of each row of a nest: int64[M], level by level from the outermost."""
        path, depth = np.full(len(name), -1), nest.depth(_DEEPEST)
        for level in range(_DEEPEST):
            index = np.flatnonzero(depth == level)
            if len(index) == 0:
                return path
            outer = np.where(nest.parent[index] >= 0, path[nest.parent[index]], -1)
            groups = group([outer, name[index]])
            numbers = np.array([self._number(*key) for key in groups.keys.tolist()], np.int64)
            path[index] = numbers[groups.group_ids]
        deeper = np.flatnonzero(depth == _DEEPEST)
        path[deeper] = path[nest.first_enclosing(deeper, depth < _DEEPEST)]
        return path

    def _number(self, parent: int, name: int) -> int:
        number = self._numbers.setdefault((parent, name), len(self._numbers))
        if number == len(self._parent):
            self._parent.append(parent)
            self._name.append(name)
        return number

    def path_at(self, track: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the path that is open on each thread at each time: int64[K], -1 without one."""
        path = np.full(len(track), -1)
        for number, nest in self._nests.items():
            on_track = np.flatnonzero(track == number)
            innermost = nest.innermost_at(time_ns[on_track])
            path[on_track] = np.where(innermost >= 0, self._path[number][innermost], -1)
        return path

    def frames(self, path: int, kind: str) -> list[Frame]:
        """Return the frames of a path, outermost first."""
        frames: list[Frame] = []
        while path >= 0:
            frames.insert(0, (kind, self._strings[self._name[path]]))
            path = self._parent[path]
        return frames
