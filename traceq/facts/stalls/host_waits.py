"""Waits of the host that a change of the program could remove: for the device, and for the data loader.

The host is one sequence: the main thread and, while that waits, a thread that launches work (backward).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work, launch_times
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind, blocking_calls
from traceq.facts.timeline.data_loading import loader_waits
from traceq.facts.timeline.steps import main_track
from traceq.intervals import measure_within, sorted_unique, spans
from traceq.model import Trace

__all__ = ["HostWaits", "host_waits"]


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """Waits on the host line: blocking calls, then waits for the data loader.

    H waits: `call` int64[H] into BlockingCalls, -1 for the loader; `start`, `end` int64[H] ns; `saves` int64[H] ns of
    host time that removing the wait gives back. W edges from device work to a wait: `wait` int64[W] into the H waits,
    `work` int64[W] into DeviceWork.
    """

    call: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    saves: NDArray[np.int64]
    wait: NDArray[np.int64]
    work: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.call)


@once_per_trace
def host_waits(trace: Trace) -> HostWaits:
    """Return the blocking calls of the host line with the work they wait for, then the waits for the data loader."""
    calls, chosen = blocking_calls(trace), _calls_on_host_line(trace)
    start, end = calls.start[chosen], calls.end[chosen]
    wait, awaited = _awaited_work(trace, chosen)
    stays = np.where(calls.copy[chosen] >= 0, np.minimum(_launch_cost(trace), end - start), 0)
    load_start, load_end = loader_waits(trace).T
    blocked = measure_within(spans(start, end), load_start, load_end)
    return HostWaits(
        call=np.r_[chosen, np.full(len(load_start), -1)],
        start=np.r_[start, load_start],
        end=np.r_[end, load_end],
        saves=np.r_[end - start - stays, load_end - load_start - blocked],
        wait=wait,
        work=awaited,
    )


def _calls_on_host_line(trace: Trace) -> NDArray[np.int64]:
    """Return the blocking calls of the active thread: the main one or, while that is in no op, one that launches."""
    calls, main = blocking_calls(trace), main_track(trace)
    if len(calls) == 0:
        return np.empty(0, np.int64)
    work = device_work(trace)
    launching = sorted_unique(tracks(trace)[work.call[work.linked]])
    main_ops = host_ops(trace).get(main)
    main_idles = ~main_ops.is_open(calls.start) if main_ops is not None else np.ones(len(calls), np.bool_)
    chosen = np.flatnonzero((calls.track == main) | (main_idles & np.isin(calls.track, launching)))
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, calls.end[chosen]])[:-1]
    alone: NDArray[np.int64] = chosen[calls.start[chosen] >= reach]
    return alone


def _awaited_work(trace: Trace, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (position in `chosen`, work whose end that call waits for).

    A copy waits for itself, any other call for the last work that ended in time, and a device synchronize for the last
    work launched on every stream.
    """
    calls, work, launched = blocking_calls(trace), device_work(trace), launch_times(trace)
    order = np.argsort(work.end, kind="stable")
    num_ended = np.searchsorted(work.end[order], calls.awaited[chosen], "right")
    last = np.where(num_ended > 0, order[num_ended - 1], -1) if len(order) else num_ended - 1
    last = np.where(calls.copy[chosen] >= 0, calls.copy[chosen], last)
    named = np.flatnonzero((last >= 0) & ~calls.is_alloc[chosen])
    pairs = [named * len(work) + last[named]]
    whole = np.flatnonzero(calls.kind[chosen] == SyncKind.DEVICE)
    for number in sorted_unique(work.stream).tolist():
        on_stream = np.flatnonzero(work.stream == number)
        num_launched = np.searchsorted(launched[on_stream], calls.start[chosen[whole]], "left")
        has_work = num_launched > 0
        pairs.append(whole[has_work] * len(work) + on_stream[num_launched[has_work] - 1])
    wait, awaited = np.divmod(sorted_unique(*pairs), max(len(work), 1))
    return wait, awaited


def _launch_cost(trace: Trace) -> int:
    """Return the median ns of a launch on the host: what a copy still costs once nothing waits for it."""
    work = device_work(trace)
    launches = sorted_unique(work.call[work.linked])
    launches = launches[~np.isin(launches, blocking_calls(trace).rows)]
    return int(np.median(trace.events.dur[launches])) if len(launches) else 0
