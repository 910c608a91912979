"""Waits of the host that a change of the program could remove: for the device, and for the data loader.

The host is one sequence, the main thread and, while that waits, a thread that launches work (backward), or several
where threads launch side by side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work, launch_times
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.active_thread import chain_of, thread_chains
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind, blocking_calls
from traceq.facts.timeline.once import recurring_loader_waits
from traceq.frozen import frozen
from traceq.intervals import measure_within, sorted_unique, spans
from traceq.model import Trace


@frozen(eq=False)
class HostWaits:
    """Waits of the host's chains of threads: blocking calls, then waits for the data loader.

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
    """Return the blocking calls of the host's chains and the work they wait for, then the waits for the data loader."""
    calls, chains = blocking_calls(trace), thread_chains(trace)
    chain = chain_of(calls.track, chains)
    chosen = np.sort(np.concatenate([_calls_in_turn(trace, chain == n, threads) for n, threads in enumerate(chains)]))
    start, end = calls.start[chosen], calls.end[chosen]
    wait, awaited = _awaited_work(trace, chosen, chain[chosen])
    stays = np.where(calls.copy[chosen] >= 0, np.minimum(_launch_cost(trace), end - start), 0)
    load_start, load_end = recurring_loader_waits(trace).T
    blocked = measure_within(spans(start, end), load_start, load_end)
    return HostWaits(
        call=np.r_[chosen, np.full(len(load_start), -1)],
        start=np.r_[start, load_start],
        end=np.r_[end, load_end],
        saves=np.r_[end - start - stays, load_end - load_start - blocked],
        wait=wait,
        work=awaited,
    )


def _calls_in_turn(trace: Trace, in_chain: NDArray[np.bool_], threads: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the blocking calls of a chain's active thread: the first or, while that is in no op, another one."""
    calls, leader = blocking_calls(trace), threads[0]
    ops = host_ops(trace).get(leader)
    leader_idles = ~ops.is_open(calls.start) if ops is not None else np.ones(len(calls), np.bool_)
    chosen = np.flatnonzero(in_chain & ((calls.track == leader) | (leader_idles & np.isin(calls.track, threads))))
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, calls.end[chosen]])[:-1]
    alone: NDArray[np.int64] = chosen[calls.start[chosen] >= reach]
    return alone


def _awaited_work(
    trace: Trace, chosen: NDArray[np.int64], chain: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (position in `chosen`, work whose end that call waits for); `chain` int64[C] is that of each call.

    A copy waits for itself, any other call for the last work of its chain that ended in time, and a device synchronize
    for the last work launched on every stream.
    """
    calls, work, launched = blocking_calls(trace), device_work(trace), launch_times(trace)
    order, last = np.argsort(work.end, kind="stable"), np.full(len(chosen), -1)
    work_chain = np.where(work.linked, chain_of(tracks(trace)[work.call], thread_chains(trace)), 0)
    for number in sorted_unique(chain).tolist():
        of_chain, in_chain = order[work_chain[order] == number], np.flatnonzero(chain == number)
        num_ended = np.searchsorted(work.end[of_chain], calls.awaited[chosen[in_chain]], "right")
        last[in_chain] = np.r_[-1, of_chain][num_ended]
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
