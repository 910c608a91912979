"""The collectives one rank issued, with what other ranks can be compared by.

gloo's own rows call a reduce-scatter all_reduce and give no order of issue: there the `c10d` ops are the calls, and
gloo's rows give the times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.links.collectives import NAMES, Calls, collective_calls, collective_kernels, name_number
from traceq.links.gloo import gloo_pairs
from traceq.links.launches import device_work
from traceq.links.memo import once_per_trace
from traceq.links.nesting import tracks
from traceq.links.phases import phases
from traceq.links.steps import steps
from traceq.model import Trace

__all__ = ["POINT_TO_POINT", "SAME_EVERYWHERE", "OwnCalls", "own_calls"]

POINT_TO_POINT = tuple(NAMES.index(name) for name in ("send", "recv", "send_recv"))
"""Not compared: a send is somebody else's recv."""

SAME_EVERYWHERE = tuple(NAMES.index(n) for n in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"))
"""Collectives whose larger side is as large on all ranks; the parts of an all-to-all may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnCalls:
    """One trace's calls; `group`, `members`, `dtype` are string ids of the trace, `phase` its phase numbers, the rest
    as in Issued. `level` is the kind of row that calls are known by; `is_loose`: by gloo's own names, among which a
    reduce-scatter is an all_reduce."""

    level: str
    is_loose: bool
    group: NDArray[np.int64]
    members: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    name: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    group_size: NDArray[np.int64]
    sequence: NDArray[np.int64]
    step: NDArray[np.int64]
    at: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    row: NDArray[np.int64]


@once_per_trace
def own_calls(trace: Trace) -> OwnCalls:
    """The collectives of a trace by time of issue; messages between two ranks are left out."""
    calls, events = collective_calls(trace), trace.events
    level = events.text(int(calls.rows[0])).partition(":")[0] if len(calls) else ""
    pairs = gloo_pairs(trace, calls.rows) if level == "gloo" and trace.backend == "gloo" else None
    columns = _by_ops(trace, calls, *pairs) if pairs is not None else _by_calls(trace, calls)
    columns["elements"] = np.where(np.isin(columns["name"], SAME_EVERYWHERE), columns["elements"], -1)
    ts, start = events.ts[columns["row"]], columns["start"]
    columns["step"], columns["at"] = _steps(trace, ts), ts + trace.base_time_ns
    columns["end"] = np.where(start >= 0, columns["end"] + trace.base_time_ns, -1)
    columns["start"] = np.where(start >= 0, start + trace.base_time_ns, -1)
    moves = (columns["name"] >= 0) & ~np.isin(columns["name"], POINT_TO_POINT)
    is_loose = level == "gloo" and pairs is None
    return OwnCalls(level, is_loose, **{name: column[moves] for name, column in columns.items()})


def _by_calls(trace: Trace, calls: Calls) -> dict[str, NDArray[np.int64]]:
    """Columns of OwnCalls by the calls' own rows."""
    told = _Told(trace, calls.message)
    start, end = _times(trace, calls)
    return {
        "group": told.column("group"),
        "members": told.column("ranks"),
        "dtype": told.column("dtype"),
        "phase": calls.phase,
        "name": calls.name,
        "elements": np.maximum(told.column("elements_in"), told.column("elements_out")),
        "size": calls.size,
        "group_size": told.column("group_size"),
        "sequence": told.column("sequence"),
        "start": start,
        "end": end,
        "row": calls.rows,
    }


def _by_ops(trace: Trace, calls: Calls, ops: NDArray[np.int64], ran: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Columns of OwnCalls by the `c10d` ops, with the times of gloo's rows: `ran` int64[ops] into Calls or -1.

    The row of an op may be that of its neighbour, so its dtype counts only where the elements are those of the op.
    """
    events, own = trace.events, _Told(trace, _messages(trace, ops))
    calls_told = _Told(trace, np.where(ran >= 0, calls.message[ran], -1))
    elements = own.column("elements_in")
    absent = np.full(len(ops), -1)
    return {
        "group": absent,
        "members": absent,
        "dtype": np.where(calls_told.column("elements_in") == elements, calls_told.column("dtype"), -1),
        "phase": phases(trace).on(tracks(trace)[ops], events.ts[ops]),
        "name": _names(trace, ops),
        "elements": elements,
        "size": np.where(ran >= 0, calls.size[ran], -1),
        "group_size": absent,
        "sequence": absent,
        "start": np.where(ran >= 0, events.ts[calls.rows[ran]], -1),
        "end": np.where(ran >= 0, events.end[calls.rows[ran]], -1),
        "row": ops,
    }


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
    distinct, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    return np.array([name_number(trace.events.strings[text]) for text in distinct.tolist()], np.int64)[inverse]


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
