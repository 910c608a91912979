"""Calls in which the host may wait, of the sequence that its launching threads are."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from .collectives import is_communication
from .loading import around_iterations
from .reader import Trace
from .spans import inside, union
from .streams import Device
from .syncs import Sync, find_syncs

__all__ = ["Hold", "holds", "loading_calls", "queue_length"]

SYNCHRONIZE = re.compile("(Device|Ctx|Context)Synchronize")
LAUNCH_KERNEL = re.compile("(cuda|cu|hip)(Module|Ext)?LaunchKernel")


@dataclass
class Hold:
    """The host may wait on [start, end) for the end of some `work`, by index, or for a place in the launch `queue`.

    `sync` is what a program could do without, and `costs` what its call then still takes; `is_loader` likewise.
    """

    start: int
    end: int
    work: list[int] = field(default_factory=list)
    sync: Sync | None = None
    costs: int = 0
    is_loader: bool = False
    queues: bool = False

    @property
    def is_removable(self) -> bool:
        return self.sync is not None or self.is_loader


def holds(trace: Trace, device: Device, length: int) -> list[Hold]:
    """All of them: syncs, waits for the loader, other copies and synchronizes, launches, and waits without a call.

    Launches wait only where the queue is full at some time, of a `length` above 0.
    """
    result = sync_holds(trace, device)
    rows = [e for e in trace.events if e.thread == trace.main and e.name.startswith("enumerate(DataLoader)")]
    asks = [(e.start, e.end) for e in rows if e.cat in ("annotation", "cpu_op")]
    loads = union([*asks, *around_iterations(trace)])
    result += [Hold(start, end, is_loader=True) for start, end in loads]
    rows_held = {hold.sync.call.row for hold in result if hold.sync and hold.sync.call}
    launching = {call.row: call for call in device.calls if call is not None}
    others = [call for row, call in sorted(launching.items()) if row not in rows_held and call.end > call.start]
    for call in (call for call in others if "memcpy" in call.name.lower()):
        first = next(index for index, launch in enumerate(device.calls) if launch is call)
        is_awaited = re.search("Memcpy (DtoH|HtoD)|DeviceToHost|HostToDevice", device.ops[first].name)
        result.append(Hold(call.start, call.end, [first] if is_awaited else []))
    for call in trace.events:
        if call.cat == "runtime" and SYNCHRONIZE.search(call.name) and call.row not in rows_held:
            awaited = list(device.last_launched(call.start)) if call.end > call.start else []
            result += [Hold(call.start, call.end, awaited)] if call.end > call.start else []
    queued = [call for call in others if "memcpy" not in call.name.lower()] if length else []
    result += [Hold(call.start, call.end, queues=True) for call in queued]
    return result + list(silences(trace, device))


def sync_holds(trace: Trace, device: Device) -> list[Hold]:
    """The syncs of the sequence: a launching thread's count while the main thread is in no op, one after the other."""
    threads = {trace.main, *(call.thread for call in device.calls if call is not None)}
    ops = union([(e.start, e.end) for e in trace.events if e.cat == "cpu_op" and e.thread == trace.main])
    syncs = sorted(find_syncs(trace), key=lambda sync: (sync.start, sync.call.row if sync.call else -1))
    calls = {call.row: call for call in device.calls if call is not None}
    blocking = {sync.call.row for sync in syncs if sync.call}
    took = [call.end - call.start for row, call in calls.items() if row not in blocking]
    launch_ns, reach, result = int(median(took)) if took else 0, -1, []
    for sync in syncs:
        in_turn = sync.thread == trace.main or (sync.thread in threads and not inside(ops, sync.start))
        if not in_turn:
            continue
        if sync.start >= reach:
            costs = min(launch_ns, sync.end - sync.start) if sync.copy else 0
            result.append(Hold(sync.start, sync.end, awaited_work(device, sync), sync, costs))
        reach = max(reach, sync.end)
    return result


def awaited_work(device: Device, sync: Sync) -> list[int]:
    """Its copy, else the last work to end in time; of a device's synchronize also the last that each stream was given.

    A free waits for all that it was given, unless it returns before that is over.
    """
    assert sync.call is not None
    if sync.kind == "alloc":
        last = list(device.last_launched(sync.start)) if "Free" in sync.call.name else []
        return last if all(device.ops[index].end <= sync.end + 1000 for index in last) else []
    if sync.copy is not None:
        return [device.index[sync.copy.row]]
    assert sync.work_end is not None
    ended = device.last_ended(sync.work_end)
    awaited = [] if ended is None else [ended]
    return sorted({*awaited, *(device.last_launched(sync.start) if sync.kind == "device" else ())})


def silences(trace: Trace, device: Device) -> Iterator[Hold]:
    """Times of 1 ms without a call of the main thread, in which a collective runs that has just ended at their end."""
    calls = sorted((e for e in trace.events if e.cat == "runtime" and e.thread == trace.main), key=lambda e: e.start)
    by_end = [index for index in device.by_end if is_communication(device.ops[index])]
    ends, reach = [device.ops[index].end for index in by_end], 0
    for before, after in pairwise(calls):
        reach = max(reach, before.end)
        count = bisect_right(ends, after.start)
        silent = after.start - reach
        if silent < 1_000_000 or not count:
            continue
        op = device.ops[by_end[count - 1]]
        if after.start - op.end <= 100_000 and op.start - reach <= silent // 10:
            yield Hold(reach, after.start, [by_end[count - 1]])


def queue_length(device: Device) -> int:
    """How many launches were outstanding when the queue was full; 0 if it never was.

    It is full where 20 calls or more with 900 launches outstanding take longer than 50 us.
    """
    linked = [(call, index) for index, call in enumerate(device.calls) if call is not None]
    linked.sort(key=lambda pair: (pair[0].start, pair[1]))
    early = [index for index, is_early in enumerate(device.early) if is_early]
    ends = sorted([device.ops[index].end for index in [*early, *(index for _, index in linked)]])
    full: dict[int, int] = {}
    for place, (call, _) in enumerate(linked):
        outstanding = len(early) + place - bisect_right(ends, call.end)
        if call.end - call.start > 50_000 and outstanding >= 900:
            full[call.row] = max(outstanding, full.get(call.row, 0))
    return max(full.values()) if len(full) >= 20 else 0


def loading_calls(device: Device) -> set[int]:
    """Rows of the calls that launch a kernel for the first time, and take so long that they load it."""
    kernels = [(call, op) for call, op in zip(device.calls, device.ops, strict=True) if call and op.cat == "kernel"]
    kernels.sort(key=lambda pair: pair[0].start)
    if not kernels:
        return set()
    usual = median(call.end - call.start for call, _ in kernels)
    ends, seen, rows = sorted(op.end for _, op in kernels), set[str](), set()
    for place, (call, op) in enumerate(kernels):
        is_long = call.end - call.start > max(1_000_000, 50 * usual) and place - bisect_right(ends, call.end) < 900
        if is_long and op.name not in seen and LAUNCH_KERNEL.match(call.name):
            rows.add(call.row)
        seen.add(op.name)
    return rows
