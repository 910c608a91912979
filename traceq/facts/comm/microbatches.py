"""Passes of microbatches through the stages of a rank in a pipeline: when each is computed, in which order.

Named by annotations, those of torch's schedules: `PP:1F0` (stage, forward, microbatch), `Forward 0`. Else a pass is
what one phase computes between two messages.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.point_to_point import PointToPoint, point_to_point
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import COMMUNICATION_OP, is_communication
from traceq.facts.events.name_patterns import EMPTY, matching, rows_named
from traceq.facts.events.nesting import Nest, host_ops, nest, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import on_main_thread, steps
from traceq.frozen import frozen
from traceq.intervals import Spans, spans
from traceq.model import Category, Trace, select_rows

PASS_KINDS = "FBIWO"
"""Forward, backward, backward for inputs, backward for weights, and forward of one microbatch with backward of another.

They are the letters of torch's schedules, with O for OVERLAP_F_B; `Passes.kind` are indices into them.
"""
_FORWARD, _BACKWARD, _BACKWARD_INPUT, WEIGHT_GRADIENT, _OVERLAPPED = range(len(PASS_KINDS))
FORWARD_KINDS = (_FORWARD, _OVERLAPPED)

_ACTION = re.compile(r"^PP:(?:(?P<stage>\d{1,9})(?P<kind>[FBIW])\d{1,9}$|\((?P<first>\d{1,9})F\d{1,9};.*OVERLAP_F_B$)")
_PASS = re.compile(r"^(?P<kind>Forward|Backward) \d{1,9}$")
_PHASES = (
    ("W", re.compile(r"weight_gradient")),
    ("B", re.compile(r"backward|bwd", re.IGNORECASE)),
    ("F", re.compile(r"forward|fwd", re.IGNORECASE)),
)
_BARRIER = re.compile(r"^(c10d::|gloo:|[nhx]ccl:)barrier$")
_LEAST_PART = 0.25
"""Part of a usual pass from which a piece of a phase is one, and not an op of the loss or of the schedule itself."""


@frozen(eq=False)
class Passes:
    """M passes of one rank in order of issue, by the clock of its trace.

    int64[M]: `kind` into PASS_KINDS; `stage`, -1 if unknown; `step` number, -1 between steps; `issued_ns`, when the
    host began it; `start`, `end` ns of what it computes. `named`: annotations mark the passes. `computing`: all of the
    rank's compute, also outside of passes.
    """

    kind: NDArray[np.int64]
    stage: NDArray[np.int64]
    step: NDArray[np.int64]
    issued_ns: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    named: bool
    computing: Spans

    def __len__(self) -> int:
        return len(self.kind)


@frozen(eq=False)
class _Items:
    """Kernels, or without a device the outermost ops, by time of issue; `kind` into PASS_KINDS by phase, or -1."""

    issued_ns: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.int64]


@frozen(eq=False)
class _Runs:
    """Runs of consecutive items of one kind, in one step and between the same two messages (`cut`): int64[N] each.

    `computed_ns`: summed over the items.
    """

    kind: NDArray[np.int64]
    cut: NDArray[np.int64]
    step: NDArray[np.int64]
    issued_ns: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    computed_ns: NDArray[np.int64]

    def select(self, chosen: NDArray[np.bool_]) -> _Runs:
        """Return the chosen runs."""
        return select_rows(self, chosen)

    def merge(self) -> _Runs:
        """Return the runs with neighbours of the same kind, cut and step made one."""
        keys = np.column_stack([self.kind, self.cut, self.step])
        first = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)][: len(keys)])
        if len(first) == 0:
            return self
        start, end = np.minimum.reduceat(self.start, first), np.maximum.reduceat(self.end, first)
        columns = {name: getattr(self, name)[first] for name in ("kind", "cut", "step", "issued_ns")}
        return _Runs(**columns, start=start, end=end, computed_ns=np.add.reduceat(self.computed_ns, first))


@once_per_trace
def passes(trace: Trace) -> Passes:
    """Return the passes of a rank; none for one that neither names passes nor sends messages."""
    marks, kinds, stages = _named(trace)
    if len(marks.rows):
        return _by_annotations(trace, _items(trace), marks, kinds, stages)
    none = np.empty(0, np.int64)
    return _by_phases(trace, _items(trace) if len(point_to_point(trace)) else _Items(none, none, none, none))


def _items(trace: Trace) -> _Items:
    events, work, phase_labels = trace.events, device_work(trace), phases(trace)
    kinds = np.array([_kind_of_phase(name) for name in phase_labels.names], np.int64)
    if len(work):
        chosen = work.linked & ~is_communication(trace) & (events.category[work.rows] == Category.KERNEL)
        phase, start, end = phase_labels.work_phase[chosen], work.start[chosen], work.end[chosen]
        issued = events.ts[work.call[chosen]]
    else:
        rows = np.concatenate([np.empty(0, np.int64), *(ops.rows[ops.parent < 0] for ops in host_ops(trace).values())])
        # since torch 2.15 schedules allocate what they receive before they wait for it
        rows = rows[~matching(events, rows, COMMUNICATION_OP) & ~matching(events, rows, EMPTY)]
        issued, start, end = events.ts[rows], events.ts[rows], events.end[rows]
        phase = phase_labels.phase_at(tracks(trace)[rows], start)
    order = np.argsort(issued, kind="stable")
    return _Items(issued[order], start[order], end[order], kinds[phase[order]])


def _kind_of_phase(name: str) -> int:
    return next((PASS_KINDS.index(kind) for kind, pattern in _PHASES if pattern.search(name)), -1)


def _named(trace: Trace) -> tuple[Nest, NDArray[np.int64], NDArray[np.int64]]:
    """Return (annotations of passes on the main thread, their kinds, their stages or -1)."""
    events, none = trace.events, np.empty(0, np.int64)
    rows = on_main_thread(trace, events.rows(Category.ANNOTATION))
    for pattern in (_ACTION, _PASS):
        marks = nest(events, rows[matching(events, rows, pattern)])
        matches = [match.groupdict() for match in map(pattern.match, map(events.text, marks.rows.tolist())) if match]
        kinds = [PASS_KINDS.index((match["kind"] or "O")[0]) for match in matches]
        stages = [int(match.get("stage") or match.get("first") or -1) for match in matches]
        if _FORWARD in kinds and {_BACKWARD, _BACKWARD_INPUT} & {*kinds}:
            return marks, np.array(kinds, np.int64), np.array(stages, np.int64)
    return nest(events, none), none, none


def _by_annotations(
    trace: Trace, items: _Items, marks: Nest, kinds: NDArray[np.int64], stages: NDArray[np.int64]
) -> Passes:
    """Return a pass per annotation, from the first to the last of what it computes.

    One in which nothing is computed (a first stage has no gradient of its input) is empty, and at the annotation's end.
    Without a device, Python is part of it: from the annotation's begin, or the message that it waits for, to its end,
    or the message that it sends.
    """
    index = marks.innermost_at(items.issued_ns)
    inside = index >= 0
    start, end = np.full(len(kinds), np.iinfo(np.int64).max), np.full(len(kinds), -1)
    np.minimum.at(start, index[inside], items.start[inside])
    np.maximum.at(end, index[inside], items.end[inside])
    is_empty = end < 0
    if len(device_work(trace)) == 0:
        start, end = _with_python(point_to_point(trace), marks, start, end)
    start, end = np.where(is_empty, marks.end, start), np.where(is_empty, marks.end, end)
    computing, step = spans(items.start, items.end), _step_numbers(trace, marks.start)
    return Passes(kinds, stages, step, marks.start, start, end, named=True, computing=computing)


def _with_python(
    messages: PointToPoint, marks: Nest, start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end) of what annotations compute, extended up to the messages before and after it."""
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    received = np.sort(np.r_[least, messages.end[~messages.is_send]])
    posted = np.sort(np.r_[messages.start, most])
    before = received[np.searchsorted(received, start, "right") - 1]
    after = posted[np.minimum(np.searchsorted(posted, end, "left"), len(posted) - 1)]
    return np.maximum(marks.start, before), np.minimum(marks.end, after)


def _by_phases(trace: Trace, items: _Items) -> Passes:
    """Return what one phase computes between two messages or barriers, without what is too little for a pass."""
    cut = np.searchsorted(_cuts(trace), items.issued_ns, "right")
    step, computed_ns = _step_numbers(trace, items.issued_ns), items.end - items.start
    runs = _Runs(items.kind, cut, step, items.issued_ns, items.start, items.end, computed_ns).merge()
    runs = runs.select((runs.kind >= 0) & (runs.computed_ns >= _LEAST_PART * _usual_ns(runs)[runs.kind])).merge()
    stage, computing = np.full(len(runs.kind), -1), spans(items.start, items.end)
    return Passes(runs.kind, stage, runs.step, runs.issued_ns, runs.start, runs.end, named=False, computing=computing)


def _cuts(trace: Trace) -> NDArray[np.int64]:
    """Return when the host issues messages and barriers, ascending."""
    barriers = rows_named(trace.events, _BARRIER, Category.CPU_OP, Category.ANNOTATION)
    return np.sort(np.r_[point_to_point(trace).issued_ns, trace.events.ts[barriers]])


def _usual_ns(runs: _Runs) -> NDArray[np.float64]:
    """Return float64[kinds + 1]: what the run of each kind computes in which the median nanosecond lies; 0 for none."""
    usual = np.zeros(len(PASS_KINDS) + 1)
    for kind in range(len(PASS_KINDS)):
        computed_ns = np.sort(runs.computed_ns[runs.kind == kind])
        if len(computed_ns):
            usual[kind] = computed_ns[np.searchsorted(np.cumsum(computed_ns), computed_ns.sum() / 2)]
    return usual


def _step_numbers(trace: Trace, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    return steps(trace).numbers(steps(trace).issued(time_ns))
