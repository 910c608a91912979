"""The collectives one rank issued, with what other ranks can be compared by.

gloo's own rows call a reduce-scatter all_reduce and give no order of issue: there the `c10d` ops are the calls, and
gloo's rows give the times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collective_columns import CollectiveColumns
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, Calls, collective_calls, collective_kernels, name_number
from traceq.facts.comm.gloo_ops import gloo_pairs
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.intervals import sorted_unique
from traceq.model import Trace

__all__ = ["POINT_TO_POINT", "SAME_EVERYWHERE", "OwnCalls", "own_calls"]

POINT_TO_POINT = tuple(COLLECTIVE_NAMES.index(name) for name in ("send", "recv", "send_recv"))
"""Not compared: a send is somebody else's recv."""

SAME_EVERYWHERE = tuple(
    COLLECTIVE_NAMES.index(n) for n in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
)
"""Collectives whose larger side is as large on all ranks; the parts of an all-to-all may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnCalls:
    """One rank's calls; `group`, `members`, `dtype` int64[C] into `texts`, -1 = absent; `phase` int64[C] into `phases`.
    `level` is the kind of row that calls are known by; `is_loose`: by gloo's own names, among which a reduce-scatter is
    an all_reduce. `sends`: some of the rank's calls are messages to another, which are left out.
    """

    level: str
    is_loose: bool
    sends: bool
    texts: tuple[str, ...]
    phases: tuple[str, ...]
    group: NDArray[np.int64]
    members: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    called: CollectiveColumns


@once_per_trace
def own_calls(trace: Trace) -> OwnCalls:
    """The collectives of a trace by time of issue; messages between two ranks are left out."""
    calls, events = collective_calls(trace), trace.events
    level = events.text(int(calls.rows[0])).partition(":")[0] if len(calls) else ""
    pairs = gloo_pairs(trace, calls.rows) if level == "gloo" and trace.backend == "gloo" else None
    own = _by_ops(trace, calls, *pairs) if pairs is not None else _by_calls(trace, calls)
    moves = (own.called.name >= 0) & ~np.isin(own.called.name, POINT_TO_POINT)
    ids = np.stack([own.group[moves], own.members[moves], own.dtype[moves]])
    told = sorted_unique(ids[ids >= 0])
    group, members, dtype = np.where(ids >= 0, np.searchsorted(told, ids), -1)
    return OwnCalls(
        level,
        is_loose=level == "gloo" and pairs is None,
        sends=bool(np.isin(calls.name, POINT_TO_POINT).any()),
        texts=tuple(events.strings[text] for text in told.tolist()),
        phases=phases(trace).names,
        group=group,
        members=members,
        dtype=dtype,
        phase=own.phase[moves],
        called=own.called.some(moves),
    )


def _called(
    trace: Trace,
    rows: NDArray[np.int64],
    ran: tuple[NDArray[np.int64], NDArray[np.int64]],
    name: NDArray[np.int64],
    elements: NDArray[np.int64],
    **told: NDArray[np.int64],
) -> CollectiveColumns:
    """Calls by the rows that issued them and when they ran, (start, end) ns, -1 for one that did not."""
    ts, has_run = trace.events.ts[rows], ran[0] >= 0
    return CollectiveColumns(
        name=name,
        elements=np.where(np.isin(name, SAME_EVERYWHERE), elements, -1),
        step=_steps(trace, ts),
        at=ts + trace.base_time_ns,
        start=np.where(has_run, ran[0] + trace.base_time_ns, -1),
        end=np.where(has_run, ran[1] + trace.base_time_ns, -1),
        row=rows,
        **told,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """Calls with string ids of the trace: `group`, `members`, `dtype` int64[C]; `phase` int64[C]."""

    group: NDArray[np.int64]
    members: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    called: CollectiveColumns


def _by_calls(trace: Trace, calls: Calls) -> _Calls:
    """By the calls' own rows."""
    told = _Told(trace, calls.message)
    elements = np.maximum(told.column("elements_in"), told.column("elements_out"))
    of_group = {"group_size": told.column("group_size"), "sequence": told.column("sequence")}
    called = _called(trace, calls.rows, _times(trace, calls), calls.name, elements, size=calls.size, **of_group)
    group, members, dtype = (told.column(name) for name in ("group", "ranks", "dtype"))
    return _Calls(group, members, dtype, calls.phase, called)


def _by_ops(trace: Trace, calls: Calls, ops: NDArray[np.int64], ran: NDArray[np.int64]) -> _Calls:
    """By the `c10d` ops, with the times of gloo's rows: `ran` int64[ops] into Calls or -1.

    The row of an op may be that of its neighbour, so its dtype counts only where the elements are those of the op.
    """
    events = trace.events
    elements = _Told(trace, _messages(trace, ops)).column("elements_in")
    by_row = _Told(trace, np.where(ran >= 0, calls.message[ran], -1))
    absent, done = np.full(len(ops), -1), ran >= 0
    times = tuple(np.where(done, column[calls.rows[ran]], -1) for column in (events.ts, events.end))
    size = np.where(done, calls.size[ran], -1)
    called = _called(
        trace, ops, (times[0], times[1]), _names(trace, ops), elements, size=size, group_size=absent, sequence=absent
    )
    dtype = np.where(by_row.column("elements_in") == elements, by_row.column("dtype"), -1)
    phase = phases(trace).on(tracks(trace)[ops], events.ts[ops])
    return _Calls(absent, absent, dtype, phase, called)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the arguments of calls say."""

    trace: Trace
    message: NDArray[np.int64]

    def column(self, name: str) -> NDArray[np.int64]:
        """One column of Messages for each call; -1 where it is silent."""
        values = getattr(self.trace.events.messages, name)
        if len(values) == 0:
            return np.full(len(self.message), -1)
        return np.where(self.message >= 0, values[self.message].astype(np.int64), -1)


def _names(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into NAMES of each row."""
    sorted_unique, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    return np.array([name_number(trace.events.strings[text]) for text in sorted_unique.tolist()], np.int64)[inverse]


def _messages(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into Messages of each row, -1 without one."""
    known = trace.events.messages.row
    if len(known) == 0:
        return np.full(len(rows), -1)
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, at, -1)


def _times(trace: Trace, calls: Calls) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each call ran: its kernels, or without a device its own row; -1 for a call without a kernel."""
    work, kernels = device_work(trace), collective_kernels(trace)
    if len(work) == 0:
        return trace.events.ts[calls.rows], trace.events.end[calls.rows]
    linked = kernels.call >= 0
    never = np.iinfo(np.int64).max
    start, end = np.full(len(calls), never), np.full(len(calls), -1)
    np.minimum.at(start, kernels.call[linked], work.start[kernels.work[linked]])
    np.maximum.at(end, kernels.call[linked], work.end[kernels.work[linked]])
    return np.where(start < never, start, -1), end


def _steps(trace: Trace, ts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the step in which each instant lies, or that comes next; 0 for all in a trace without steps."""
    found = steps(trace)
    if not found.marked:
        return np.zeros(len(ts), np.int64)
    number = np.r_[found.number, found.number[-1] + 1]
    after = number[np.searchsorted(found.host[:, 1], ts, "right")]
    return np.asarray(np.where(ts < found.host[0, 0], found.number[0] - 1, after))
