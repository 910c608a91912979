"""What fills the time in which the device has nothing to do: every idle instant with what the host was at.

The pieces are those of the partition, cut further where the host enters or leaves an op, an annotation or a Python
frame, so that each answers for its self time and for no other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.host_boundaries import host_cuts
from traceq.facts.events.nesting import tracks
from traceq.facts.stalls.host_labels import Labels
from traceq.facts.timeline.active_thread import ActiveThread, active_thread
from traceq.facts.timeline.data_loading import loading
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import IDLE, Activity, TimeCategory, activity, in_counted_steps
from traceq.intervals import Spans, contains, count_before, cut, sorted_unique
from traceq.model import Trace

__all__ = ["IdleCause", "Idleness", "idleness"]


class IdleCause(IntEnum):
    """Why the device idles; the names, in lower case and with spaces, are those of the JSON."""

    SYNC = 0
    ALLOCATION = 1
    DATA_LOADER = 2
    HOST_OP = 3
    PYTHON = 4
    LAUNCH_QUEUE = 5
    END = 6


_CAUSE = {
    TimeCategory.SYNC_WAIT: IdleCause.SYNC,
    TimeCategory.ALLOC_WAIT: IdleCause.ALLOCATION,
    TimeCategory.HOST_BOUND: IdleCause.HOST_OP,
    TimeCategory.LAUNCH_LATENCY: IdleCause.LAUNCH_QUEUE,
    TimeCategory.TAIL: IdleCause.END,
    TimeCategory.DATALOAD_WAIT: IdleCause.DATA_LOADER,
    TimeCategory.PYTHON: IdleCause.PYTHON,
}


@dataclass(frozen=True, slots=True, eq=False)
class Idleness:
    """P pieces of idle time in the counted steps, sorted: `parts` int64[P, 2] ns; `doing` int8[P], the category of the
    partition; `cause` int8[P] of Cause; `phase` int64[P]; `name`, `line` int32[P] into `texts`: the op, or for Python
    the annotation around it; `gap` int64[P]: pieces of one gap of one step share a number.
    """

    texts: tuple[str, ...]
    parts: Spans
    doing: NDArray[np.int8]
    cause: NDArray[np.int8]
    phase: NDArray[np.int64]
    name: NDArray[np.int32]
    line: NDArray[np.int32]
    gap: NDArray[np.int64]


def idleness(trace: Trace) -> Idleness:
    """All idle pieces; without a device those in which the main thread waits for data or runs Python between ops."""
    done, idle = activity(trace), _idle_pieces(trace)
    parts, piece, turns = _cut(trace, done, idle)
    doing, at = done.doing[piece], turns.at  # in a piece the host stays where it is
    cause = np.array([_CAUSE.get(TimeCategory(code), 0) for code in range(len(TimeCategory))], np.int8)[doing]
    host = np.flatnonzero(cause == IdleCause.HOST_OP)
    cause[host[contains(loading(trace), at[host])]] = IdleCause.DATA_LOADER
    found = Labels(trace)
    name, line = np.zeros(len(parts), np.int32), np.zeros(len(parts), np.int32)
    host = np.flatnonzero((cause == IdleCause.HOST_OP) | (cause == IdleCause.PYTHON))
    name[host], line[host] = found.on_host(turns, host)
    between = host[name[host] == 0]
    cause[between] = IdleCause.PYTHON
    name[between] = found.around(turns.track[between], at[between])
    waits = np.flatnonzero(done.call[piece] >= 0)
    name[waits], line[waits] = found.of_syncs(done.call[piece[waits]])
    queued = np.flatnonzero(cause == IdleCause.LAUNCH_QUEUE)
    name[queued], line[queued] = found.of_launches(device_work(trace).call[done.owner[piece[queued]]])
    step = count_before(steps(trace).window[:, 0], at)
    begins = np.r_[True, (parts[1:, 0] != parts[:-1, 1]) | (step[1:] != step[:-1])][: len(parts)]
    return Idleness(tuple(found.texts), parts, doing, cause, done.phase[piece], name, line, np.cumsum(begins))


def _idle_pieces(trace: Trace) -> NDArray[np.int64]:
    """Pieces of the activity that are idle and lie in a counted step."""
    wanted = IDLE if len(device_work(trace)) else (TimeCategory.DATALOAD_WAIT, TimeCategory.PYTHON)
    return np.flatnonzero(activity(trace).among(*wanted) & in_counted_steps(trace))


def _cut(trace: Trace, done: Activity, idle: NDArray[np.int64]) -> tuple[Spans, NDArray[np.int64], ActiveThread]:
    """(parts, the piece of the activity that each belongs to, the thread that is looked at): cut where an op, an
    annotation or a Python frame begins or ends.
    """
    parts, of = cut(done.parts.take(idle, axis=0), host_cuts(trace))
    piece = idle[of]
    own, work = main_track(trace), device_work(trace)
    turns = active_thread(trace, parts[:, 0].copy())
    if len(work):
        launching = np.where(done.owner[piece] >= 0, tracks(trace)[work.call[done.owner[piece]]], own)
        for number in sorted_unique(launching[launching != own]).tolist():
            turns.give(trace, number, np.flatnonzero(launching == number))
    return parts, piece, turns
