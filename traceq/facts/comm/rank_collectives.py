"""Collectives that one rank issued, with the columns by which ranks are compared.

gloo's rows name a reduce-scatter all_reduce and are not in order of issue: there the `c10d` ops are the calls, and
gloo's rows give the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import (
    COLLECTIVE_NAMES,
    Calls,
    collective_calls,
    collective_kernels,
    gloo_pairs,
    kernel_times,
    message_index,
    name_numbers,
)
from traceq.facts.comm.point_to_point import PointToPoint, point_to_point
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Trace, select_rows

POINT_TO_POINT = tuple(COLLECTIVE_NAMES.index(name) for name in ("send", "recv", "send_recv"))
"""Not compared across ranks: a send on one rank is a recv on another."""

SAME_EVERYWHERE = tuple(
    COLLECTIVE_NAMES.index(n) for n in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
)
"""Collectives whose larger side has the same size on all ranks; the parts of an all-to-all may differ."""

BARRIER_LIKE = tuple(
    COLLECTIVE_NAMES.index(name) for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
)
"""Collectives that no rank finishes before the last rank has arrived."""


@frozen(eq=False)
class CollectiveColumns:
    """C collective calls, one int64[C] per column; -1 = absent.

    `name` into COLLECTIVE_NAMES; `elements` that must agree across ranks; `size` bytes; `group_size`; `sequence`;
    `step` of ProfilerStep#N; `issued_ns`, when the host issued it, `start` and `end`, when it ran, all absolute ns;
    `row` into the rank's Events or Flight.
    """

    name: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    group_size: NDArray[np.int64]
    sequence: NDArray[np.int64]
    step: NDArray[np.int64]
    issued_ns: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row)

    def select(self, mask: NDArray[np.bool_]) -> CollectiveColumns:
        """Return the selected calls."""
        return select_rows(self, mask)

    @classmethod
    def of_ranks(cls, parts: Sequence[CollectiveColumns]) -> CollectiveColumns:
        """Return the calls of several ranks, one rank after the other."""
        return cls(**{column.name: concat([getattr(part, column.name) for part in parts]) for column in fields(cls)})


def concat(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the columns concatenated; an empty one for no columns."""
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


@frozen(eq=False)
class RankCalls:
    """One rank's calls without point-to-point messages.

    `group`, `members`, `dtype` int64[C] into `texts`, -1 = absent; `phase` int64[C] into `phases`. `level`: the kind of
    row from which calls are read; `has_gloo_names`: names are those of gloo's rows, where a reduce-scatter is an
    all_reduce; `has_messages`: the rank sends or receives messages, too, by the clock of its trace those in `messages`.
    """

    level: str
    has_gloo_names: bool
    has_messages: bool
    messages: PointToPoint
    texts: tuple[str, ...]
    phases: tuple[str, ...]
    group: NDArray[np.int64]
    members: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    columns: CollectiveColumns


@once_per_trace
def rank_calls(trace: Trace) -> RankCalls:
    """Return the collectives of a trace by time of issue, without messages between two ranks."""
    calls, events = collective_calls(trace), trace.events
    level = events.text(int(calls.rows[0])).partition(":")[0] if len(calls) else ""
    pairs = gloo_pairs(trace, calls.rows) if level == "gloo" and trace.backend == "gloo" else None
    every_call = _from_ops(trace, calls, *pairs) if pairs is not None else _from_calls(trace, calls)
    chosen = (every_call.columns.name >= 0) & ~np.isin(every_call.columns.name, POINT_TO_POINT)
    ids = np.stack([every_call.group, every_call.members, every_call.dtype])[:, chosen]
    used = sorted_unique(ids[ids >= 0])
    group, members, dtype = np.where(ids >= 0, np.searchsorted(used, ids), -1)
    return RankCalls(
        level,
        has_gloo_names=level == "gloo" and pairs is None,
        has_messages=bool(np.isin(calls.name, POINT_TO_POINT).any()),
        messages=point_to_point(trace),
        texts=tuple(events.strings[text] for text in used.tolist()),
        phases=phases(trace).names,
        group=group,
        members=members,
        dtype=dtype,
        phase=every_call.phase[chosen],
        columns=every_call.columns.select(chosen),
    )


def _columns(
    trace: Trace,
    rows: NDArray[np.int64],
    ran: tuple[NDArray[np.int64], NDArray[np.int64]],
    name: NDArray[np.int64],
    elements: NDArray[np.int64],
    **others: NDArray[np.int64],
) -> CollectiveColumns:
    """Return the columns of calls by their rows and times; `ran` (start, end) ns is -1 for a call that did not run."""
    ts, has_run = trace.events.ts[rows], ran[0] >= 0
    return CollectiveColumns(
        name=name,
        elements=np.where(np.isin(name, SAME_EVERYWHERE), elements, -1),
        step=_steps(trace, ts),
        issued_ns=ts + trace.base_time_ns,
        start=np.where(has_run, ran[0] + trace.base_time_ns, -1),
        end=np.where(has_run, ran[1] + trace.base_time_ns, -1),
        row=rows,
        **others,
    )


@frozen(eq=False)
class _Calls:
    """C calls with `group`, `members`, `dtype` int64[C] as string ids of the trace, and `phase` int64[C]."""

    group: NDArray[np.int64]
    members: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    columns: CollectiveColumns


def _from_calls(trace: Trace, calls: Calls) -> _Calls:
    """Return the calls as their rows have them."""
    arguments = _Arguments(trace, calls.message)
    elements = np.maximum(arguments.column("elements_in"), arguments.column("elements_out"))
    of_group = {"group_size": arguments.column("group_size"), "sequence": arguments.column("sequence")}
    columns = _columns(trace, calls.rows, _times(trace, calls), calls.name, elements, size=calls.size, **of_group)
    group, members, dtype = (arguments.column(name) for name in ("group", "ranks", "dtype"))
    return _Calls(group, members, dtype, calls.phase, columns)


def _from_ops(trace: Trace, calls: Calls, ops: NDArray[np.int64], ran: NDArray[np.int64]) -> _Calls:
    """Return the `c10d` ops as calls, with the times of gloo's rows: `ran` int64[ops] into Calls or -1.

    Rows of neighbouring ops may be swapped, so a row's dtype counts only if its elements equal those of the op, and if
    no neighbour has as many of another dtype.
    """
    events = trace.events
    elements = _Arguments(trace, message_index(trace, ops)).column("elements_in")
    row_arguments = _Arguments(trace, np.where(ran >= 0, calls.message[ran], -1))
    absent, has_run = np.full(len(ops), -1), ran >= 0
    times = tuple(np.where(has_run, column[calls.rows[ran]], -1) for column in (events.ts, events.end))
    size = np.where(has_run, calls.size[ran], -1)
    names, of_group = name_numbers(trace, events.name[ops]), {"group_size": absent, "sequence": absent}
    columns = _columns(trace, ops, (times[0], times[1]), names, elements, size=size, **of_group)
    dtype = np.where(row_arguments.column("elements_in") == elements, row_arguments.column("dtype"), -1)
    is_either = (elements[:-1] == elements[1:]) & (dtype[:-1] != dtype[1:])
    dtype[np.r_[False, is_either] | np.r_[is_either, False]] = -1
    phase = phases(trace).phase_at(tracks(trace)[ops], events.ts[ops])
    return _Calls(absent, absent, dtype, phase, columns)


@frozen
class _Arguments:
    """Arguments of calls: `message` int64[C] into Messages or -1."""

    trace: Trace
    message: NDArray[np.int64]

    def column(self, name: str) -> NDArray[np.int64]:
        """Return one column of Messages for each call; -1 without a message."""
        values = getattr(self.trace.events.messages, name)
        if len(values) == 0:
            return np.full(len(self.message), -1)
        return np.where(self.message >= 0, values[self.message].astype(np.int64), -1)


def _times(trace: Trace, calls: Calls) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end) ns of each call's kernels, or without a device of its row; -1 for a call without a kernel."""
    if len(device_work(trace)) == 0:
        return trace.events.ts[calls.rows], trace.events.end[calls.rows]
    return kernel_times(trace)


def _steps(trace: Trace, ts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the step that contains or follows each time; 0 in a trace without steps."""
    all_steps = steps(trace)
    if not all_steps.marked:
        return np.zeros(len(ts), np.int64)
    number = np.r_[all_steps.number, all_steps.number[-1] + 1]
    current = number[np.searchsorted(all_steps.host[:, 1], ts, "right")]
    return np.asarray(np.where(ts < all_steps.host[0, 0], all_steps.number[0] - 1, current))


def first_work(trace: Trace) -> NDArray[np.int64]:
    """Return the index into DeviceWork of the first work of each of the rank's calls: int64[C], -1 without any."""
    calls, kernels, rows = collective_calls(trace), collective_kernels(trace), rank_calls(trace).columns.row
    linked, none = kernels.call >= 0, len(device_work(trace))
    first = np.full(len(trace.events), none)
    np.minimum.at(first, calls.rows[kernels.call[linked]], kernels.work[linked])
    return np.where(first[rows] < none, first[rows], -1)
