"""Which device work waits for work of another stream: from the host's StreamWaitEvent calls and from what coincides."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["AT_ONCE_NS", "Awaits", "awaits"]

AT_ONCE_NS = 10_000
"""Device work that starts so soon after other work's end, or after its launch, waited for nothing else."""


_WAIT = re.compile(r"StreamWaitEvent")


@dataclass(frozen=True, slots=True, eq=False)
class Awaits:
    """X edges between streams: `work` and `on` int64[X] into DeviceWork; `work` starts after `on` is over."""

    work: NDArray[np.int64]
    on: NDArray[np.int64]


def awaits(trace: Trace, place: NDArray[np.int64], ready: NDArray[np.int64]) -> Awaits:
    """Edges between streams; `place` int64[D] is the order of launch, `ready` int64[D] ns what launch and stream allow.

    A trace says that a stream waits, and seldom for what. So the first work that a thread launches after such a call
    (or that runs on the stream a `cuda_sync` row names) waits for all that other streams had been given before and
    had done by its start. Besides, work that starts late, just as another stream's is over, waits for that.
    """
    work = device_work(trace)
    calls = trace.events.rows(Category.RUNTIME)
    calls = calls[matching(trace.events, calls, _WAIT)]
    first = _first_after(trace, work, place, calls)
    called = _behind_other_streams(work, place, sorted_unique(first[first >= 0]))
    late = _coincident(trace, work, place, ready, calls)
    pairs = sorted_unique(called[0] * len(work) + called[1], late[0] * len(work) + late[1])
    return Awaits(*np.divmod(pairs, max(len(work), 1)))


def _first_after(
    trace: Trace, work: DeviceWork, place: NDArray[np.int64], calls: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[calls]: the first work that each wait holds back, -1 where none follows."""
    events, of_row = trace.events, tracks(trace)
    linked = np.flatnonzero(work.linked)
    linked = linked[np.lexsort((place[linked], events.ts[work.call[linked]]))]
    launched, stream = events.ts[work.call[linked]], _named_stream(trace, calls)
    first = np.full(len(calls), -1)
    for of_call, of_work in ((of_row[calls], of_row[work.call[linked]]), (stream, work.stream[linked])):
        for number in sorted_unique(of_call[of_call >= 0]).tolist():
            asked, mine = np.flatnonzero(of_call == number), linked[of_work == number]
            at = np.searchsorted(launched[of_work == number], events.end[calls[asked]], "left")
            first[asked] = np.r_[mine, -1][at]
    return first


def _named_stream(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Stream, as DeviceWork numbers it, that waits by a `cuda_sync` row of the same correlation; -1 without one."""
    events = trace.events
    rows = events.rows(Category.SYNC)
    rows = rows[(events.correlation[rows] > 0) & (events.stream[rows] >= 0) & matching(events, rows, _WAITS_ON_DEVICE)]
    rows = rows[np.argsort(events.correlation[rows], kind="stable")]
    if len(rows) == 0:
        return np.full(len(calls), -1)
    ids = events.correlation[rows]
    at = np.minimum(np.searchsorted(ids, events.correlation[calls]), len(ids) - 1)
    stream = np.maximum(events.device[rows], 0).astype(np.int64) * 2**32 + events.stream[rows]
    return np.where(ids[at] == events.correlation[calls], stream[at], -1)


_WAITS_ON_DEVICE = re.compile(r"Stream Wait Event")


def _behind_other_streams(
    work: DeviceWork, place: NDArray[np.int64], waiting: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(work, on): each of `waiting` behind the last work launched before it on every other stream, if over by then."""
    found: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
    for number in sorted_unique(work.stream).tolist():
        mine = np.flatnonzero(work.stream == number)
        mine = mine[np.argsort(place[mine])]
        at = np.searchsorted(place[mine], place[waiting]) - 1
        last = mine[at]
        fits = (at >= 0) & (work.stream[waiting] != number) & (work.end[last] <= work.start[waiting])
        found.append(np.column_stack([waiting[fits], last[fits]]))
    pairs = np.concatenate(found)
    return pairs[:, 0], pairs[:, 1]


def _coincident(
    trace: Trace,
    work: DeviceWork,
    place: NDArray[np.int64],
    ready: NDArray[np.int64],
    calls: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(work, on): late starts right after the end of other work, where streams wait at all: after the
    trace's first such call, or within what one call launched (a graph).
    """
    order = np.argsort(work.end, kind="stable")
    at = np.searchsorted(work.end[order], work.start, "right") - 1
    on = np.where(at >= 0, order[at], -1) if len(work) else at
    ended = work.end[on] if len(work) else on
    soon = (work.start - ended <= AT_ONCE_NS) & (work.start - ready > AT_ONCE_NS)
    late = (on >= 0) & (place[on] < place) & soon
    same_launch = work.linked & (work.call == work.call[on]) if len(work) else late
    since = trace.events.ts[calls].min(initial=np.iinfo(np.int64).max)
    found = np.flatnonzero(late & ((work.start > since) | same_launch))
    return found, on[found]
