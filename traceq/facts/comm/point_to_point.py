"""Messages between two ranks: what one rank sends and receives, with the other rank where the trace tells it."""

from __future__ import annotations

import json
import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, Calls, collective_calls, kernel_times
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import rows_named, values_of_texts
from traceq.facts.events.nesting import thread_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

_SEND, _RECV = COLLECTIVE_NAMES.index("send"), COLLECTIVE_NAMES.index("recv")
_OP = re.compile(r"^c10d::(send|recv_)$")
_TITLE = re.compile(r"^[nhx]ccl:(?:send|recv) \d+(?:->|<-)(\d{1,9})$")
_MOST_RANKS = 10**9


@frozen(eq=False)
class PointToPoint:
    """P messages of one rank by time of issue, by the clock of its trace.

    `is_send` bool[P]; int64[P]: `peer`, the global rank of the other side, -1 where the trace does not tell; `step`
    number, -1 between steps; `elements`, -1 if unknown; `issued_ns` by the host; `start`, `end` ns of its kernel, or
    without a device of its row, which ends when the host has waited for it. -1 for a message without a kernel.
    """

    is_send: NDArray[np.bool_]
    peer: NDArray[np.int64]
    step: NDArray[np.int64]
    elements: NDArray[np.int64]
    issued_ns: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.peer)


@once_per_trace
def point_to_point(trace: Trace) -> PointToPoint:
    """Return the messages that a rank sends to another, or receives from one."""
    calls, events = collective_calls(trace), trace.events
    chosen = np.flatnonzero(np.isin(calls.name, (_SEND, _RECV)))
    rows = calls.rows[chosen]
    ops = _enclosing_ops(trace, rows)
    start, end = _times(trace, calls, chosen, ops)
    return PointToPoint(
        is_send=calls.name[chosen] == _SEND,
        peer=_global_ranks(trace, calls, chosen, _peers(trace, rows, ops)),
        step=steps(trace).numbers(steps(trace).issued(events.ts[rows])),
        elements=calls.elements[chosen],
        issued_ns=events.ts[rows],
        start=start,
        end=end,
    )


def _enclosing_ops(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the `c10d` op around each message, -1 without one."""
    ops = rows_named(trace.events, _OP, Category.CPU_OP)
    return thread_nests(trace, ops).rows_at(tracks(trace)[rows], trace.events.ts[rows])


def _times(
    trace: Trace, calls: Calls, chosen: NDArray[np.int64], ops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end) ns of the messages' kernels, -1 without one.

    One kernel runs a group of messages (`batch_isend_irecv`); its call is the last of the group. In a trace without a
    device a message starts with its op, which has posted it before its row begins.
    """
    rows = calls.rows[chosen]
    if len(device_work(trace)) == 0:
        return trace.events.ts[np.where(ops >= 0, ops, rows)], trace.events.end[rows]
    start, end = (times[chosen] for times in kernel_times(trace))
    track = tracks(trace)[rows]
    for number in sorted_unique(track).tolist():
        on_track = np.flatnonzero(track == number)
        has_kernel = np.flatnonzero(end[on_track] >= 0)
        following = np.searchsorted(has_kernel, np.arange(len(on_track)))
        ran = following < len(has_kernel)
        source = on_track[has_kernel[following[ran]]]
        start[on_track[ran]], end[on_track[ran]] = start[source], end[source]
    return start, end


def _peers(trace: Trace, rows: NDArray[np.int64], ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the other rank of each message, within its group; -1 where neither title nor inputs tell it."""
    events, row_track = trace.events, tracks(trace)
    peer = values_of_texts(events, np.where(ops >= 0, events.inputs[ops], -1), _input_peer)
    titles = rows_named(events, _TITLE, Category.ANNOTATION)
    for track in sorted_unique(row_track[titles]).tolist():
        on_track = np.flatnonzero(row_track[rows] == track)
        of_track = titles[row_track[titles] == track]
        call = np.searchsorted(events.ts[rows[on_track]], events.ts[of_track], "right") - 1
        peer[on_track[call[call >= 0]]] = values_of_texts(events, events.name[of_track[call >= 0]], _title_peer)
    return peer


def _input_peer(inputs: str) -> int:
    """Return the rank among the inputs of a `c10d` op, `["", "", "1", "0"]`; -1 if it is not there."""
    try:
        peer = int(json.loads(inputs)[2])  # of `c10d::send` and `c10d::recv_`: the other rank, in the group
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return -1
    return peer if 0 <= peer < _MOST_RANKS else -1


def _title_peer(title: str) -> int:
    """Return the rank at the end of `nccl:send 0->1` or `nccl:recv 0<-1`."""
    match = _TITLE.match(title)
    return int(match[1]) if match else -1


def _global_ranks(trace: Trace, calls: Calls, chosen: NDArray[np.int64], peer: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the global ranks of ranks within groups, -1 where the trace does not tell the group's members."""
    if trace.world_size == 2:  # there is but one other
        return np.full(len(chosen), 1 - trace.rank)
    messages, message = trace.events.messages, calls.message[chosen]
    listed = np.where(message >= 0, messages.ranks[message], -1) if len(messages.row) else np.full(len(chosen), -1)
    is_world = calls.group_size[chosen] == trace.world_size
    result = np.where(is_world, peer, -1)
    for text in sorted_unique(listed[listed >= 0]).tolist():
        members = _members(trace.events.strings[text])
        selected = (listed == text) & (peer >= 0) & (peer < len(members))
        result[selected] = members[peer[selected]]
    return np.asarray(np.where(peer >= 0, result, -1))


def _members(text: str) -> NDArray[np.int64]:
    """Return the global ranks of a group, `[0, 2]`; none where not all of them are written (`[0, 2, ..., 14]`)."""
    try:
        return np.array(json.loads(text), np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return np.empty(0, np.int64)
