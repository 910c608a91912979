"""When the device is busy with work that the trace does not show, by walking its idle gaps one after the other."""

from __future__ import annotations

import re

from .reader import NOT_THE_PROGRAM, Event, Trace
from .spans import Span, clip, measure, union

SYNCHRONIZE = re.compile(r"(Stream|Event|Device|Ctx|Context)Synchronize")
GATE = re.compile(r"LaunchHostFunc|StreamAddCallback|StreamWaitValue|StreamBatchMemOp|WaitExternalSemaphores")


def gaps(trace: Trace) -> list[Span]:
    """Sorted, disjoint: launched work is ready, or before any work the host waits, and for long nothing runs."""
    if not trace.launches:
        return []
    delays = [(start, end, op) for start, end, op in ready_gaps(trace) if end > start]
    usual = lower_quartile([end - start for start, end, _ in delays])
    limit = min(max(20 * usual, 200_000), 2_000_000)
    late = [(start, end) for start, end, op in delays if end - start > limit and not is_gated(trace, op)]
    first = min(op.start for op in trace.device_ops)
    waits = [(call.start, min(call.end, first)) for call in waiting_calls(trace)]
    return union(late + [(start, end) for start, end in waits if end - start > limit])


def ready_gaps(trace: Trace) -> list[tuple[int, int, Event]]:
    """(from when work was ready, until any ran, the op that was ready first) of each gap before which work is known."""
    linked = sorted((op for op in trace.device_ops if op.row in trace.launches), key=lambda op: (op.start, op.row))
    busy = union([(op.start, op.end) for op in trace.device_ops])
    hidden, earliest = [], None
    for index in reversed(range(len(busy))):
        until = busy[index][0]
        while linked and linked[-1].start >= until:
            op = linked.pop()
            if earliest is None or trace.launches[op.row].end <= trace.launches[earliest.row].end:
                earliest = op
        if earliest is not None:
            ready = trace.launches[earliest.row].end
            hidden.append((max(ready, busy[index - 1][1]) if index else ready, until, earliest))
    return hidden


def lower_quartile(values: list[int]) -> int:
    """The value that three quarters of the others reach; 0 without any."""
    return sorted(values)[(len(values) - 1) // 4] if values else 0


def waiting_calls(trace: Trace) -> list[Event]:
    """Synchronizes, and copies to the host."""
    calls = [event for event in trace.events if event.cat == "runtime" and SYNCHRONIZE.search(event.name)]
    for op in trace.device_ops:
        is_copy = "Memcpy DtoH" in op.name or "DeviceToHost" in op.name
        if is_copy and op.row in trace.launches and "memcpy" in trace.launches[op.row].name.lower():
            calls.append(trace.launches[op.row])
    return calls


def is_gated(trace: Trace, op: Event) -> bool:
    """Whether a call that makes a stream wait for others was made between the launches of the op and the one before."""
    before = [other for other in trace.device_ops if same_stream(other, op) and (other.start, other.row) < key(op)]
    previous = trace.launches.get(max(before, key=key).row) if before else None
    since = previous.start if previous else None
    calls = [event.start for event in trace.events if event.cat == "runtime" and GATE.search(event.name)]
    return any((since is None or since < start) and start <= trace.launches[op.row].start for start in calls)


def key(op: Event) -> tuple[int, int]:
    return op.start, op.row


def same_stream(a: Event, b: Event) -> bool:
    return a.stream == b.stream


def first_use(trace: Trace, hidden: list[Span]) -> Event | None:
    """The outermost op around the first call of the runtime, if it takes 100 ms in which it awaits no hidden work."""
    calls = [event for event in trace.events if event.cat == "runtime"]
    if not calls or not trace.device_ops:
        return None
    first = min(calls, key=lambda event: event.start)
    ops = [event for event in trace.events if event.cat == "cpu_op" and event.thread == first.thread]
    around = [event for event in ops if event.start <= first.start < event.end]
    if not around or "memcpy" in first.name.lower():
        return None
    outer = min(around, key=lambda event: event.start)
    waits = [call for call in calls if re.search("memcpy|synchronize", call.name.lower())]
    awaited = union([span for wait in waits for span in clip(hidden, wait.start, wait.end)])
    takes = outer.end - outer.start - measure(clip(awaited, outer.start, outer.end))
    return outer if takes >= 100_000_000 and outer.start <= min(op.start for op in trace.device_ops) else None


def opening(trace: Trace, hidden: list[Span]) -> int | None:
    """Start of the first work after the unrecorded work with which the first host step begins, if it does."""
    if first_use(trace, hidden):
        return None
    begin = trace.host_steps[0][1] if trace.host_steps else 0
    hidden = [span for span in hidden if span[1] > begin]
    ends = [end for _, end in hidden if measure(clip(hidden, begin, end)) >= 0.9 * (end - begin)]
    return min(op.start for op in trace.device_ops if op.start >= max(ends)) if ends else None


def unrecorded_ns(trace: Trace, hidden: list[Span], opens: int | None) -> int:
    """All time in which unrecorded work runs; before the first window every instant in which nothing recorded does."""
    if opens is None:
        return measure(hidden)
    start = min(event.start for event in trace.events if event.cat not in NOT_THE_PROGRAM)
    busy = [(op.start, op.end) for op in trace.device_ops]
    whole = [*hidden, (start, opens)]
    return measure(whole + busy) - measure(busy)
