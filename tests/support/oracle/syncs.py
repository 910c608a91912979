"""Host calls that wait for the device."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

from .loading import iterations
from .nested import Nested
from .reader import Event, Trace, integer
from .spans import inside, union

FREE = "(cuda|hip)Free$|cuMemFree(_v2)?$"
SLACK_NS = 50_000
ON_DEVICE = ("aten::std", "aten::var", "aten::_assert_async")
ALLOCATIONS = {
    prefix + name
    for prefix in ("cuda", "hip")
    for name in ("Malloc", "Free", "HostAlloc", "MallocHost", "FreeHost", "HostMalloc", "HostFree")
}


@dataclass
class Sync:
    """One blocking call: the host is in it on [start, end); `work_end` is f, None for an allocation.

    `call` is the first of a copy and its synchronize, `copy` the copy that it waits for.
    """

    kind: str
    start: int
    end: int
    thread: tuple[str, str]
    work_end: int | None
    size_bytes: int = 0
    call: Event | None = None
    copy: Event | None = None

    @property
    def wait_ns(self) -> int:
        return 0 if self.work_end is None else max(0, self.work_end - self.start)


class Ends:
    """Latest end of the device work launched before an instant, of one stream or of all.

    Work whose launch the trace does not hold was launched before the trace began, so whatever of it had ended when the
    call returned was awaited.
    """

    def __init__(self, trace: Trace) -> None:
        queues: dict[tuple[str, str] | None, list[tuple[int, int]]] = {None: []}
        self.unlinked: dict[tuple[str, str] | None, list[int]] = {None: []}
        for op in trace.device_ops:
            call = trace.launches.get(op.row)
            for stream in (op.stream, None):
                if call:
                    queues.setdefault(stream, []).append((call.start, op.end))
                else:
                    self.unlinked.setdefault(stream, []).append(op.end)
        self.launched, self.latest = {}, {}
        for stream, queue in queues.items():
            queue.sort()
            self.launched[stream] = [launched for launched, _ in queue]
            self.latest[stream] = running_max([end for _, end in queue])
        for ended in self.unlinked.values():
            ended.sort()
        self.ends = sorted(op.end for op in trace.device_ops)

    def launched_before(self, instant: int, stream: tuple[str, str] | None, returned: int) -> int | None:
        count = bisect_left(self.launched.get(stream, []), instant)
        unlinked = self.unlinked.get(stream, [])
        ended = bisect_right(unlinked, returned)
        ends = [self.latest[stream][count - 1]] * (count > 0) + unlinked[ended - 1 : ended] * (ended > 0)
        return max(ends, default=None)

    def last_by(self, instant: int) -> int | None:
        count = bisect_right(self.ends, instant)
        return self.ends[count - 1] if count else None


def find_syncs(trace: Trace) -> list[Sync]:
    """Every synchronisation, by thread and time; in a trace without device work the `scalar` rows."""
    if not trace.device_ops:
        return scalars(trace)
    ends, result = Ends(trace), []
    copies = {call.row: op for op in trace.device_ops if op.cat == "memcpy" and (call := trace.launches.get(op.row))}
    ops = [event for event in trace.events if event.cat == "cpu_op"]
    for call in trace.launches.values():  # ROCm calls a copy to pinned memory one within the device
        is_waiting = call.row in copies and call.name == "hipMemcpyWithStream" and "DtoD" in copies[call.row].name
        around = [op for op in ops if is_waiting and op.thread == call.thread and op.start <= call.start < op.end]
        if around and max(around, key=lambda op: (op.start, -op.end)).name != "aten::copy_":
            copies[call.row] = replace(copies[call.row], name="Memcpy DtoH")
    streams, records = known_streams(trace), known_events(trace)
    local = profilers_own(trace)
    for calls in threads(trace):
        previous: Event | None = None
        for index, call in enumerate(calls):
            following = calls[index + 1] if index + 1 < len(calls) else None
            if call.row != local and not starts_a_library(call, trace):
                sync = read_call(call, previous, following, copies, streams, records, ends)
                if sync:
                    result.append(sync)
            previous = call
    return result


def starts_a_library(call: Event, trace: Trace) -> bool:
    """Whether a free or a creation takes 100 ms, or a free 1 ms before its op asks for an attribute, with no work."""
    took, is_free = call.end - call.start, re.match(FREE, call.name) is not None
    if took < 1_000_000 or not (is_free or re.match("(cuda|hip|cu)(Stream|Event)Create", call.name)):
        return False
    if any(op.start < call.end and op.end > call.start for op in trace.device_ops):
        return False
    return took >= 100_000_000 or (is_free and asks_next(call, trace))


def asks_next(call: Event, trace: Trace) -> bool:
    """Whether the next call of the thread that frees nothing asks for an attribute, in the same innermost op."""
    on_thread = [event for event in trace.events if event.thread == call.thread]
    later = [each for each in on_thread if each.cat == "runtime" and each.start > call.start]
    following = min(
        (each for each in later if not re.match(FREE, each.name)), key=lambda each: each.start, default=None
    )
    if following is None or not following.name.endswith("DeviceGetAttribute"):
        return False
    ops = Nested(event for event in on_thread if event.cat == "cpu_op")
    op = ops.innermost(call.start)
    return op is not None and op is ops.innermost(following.start)


def read_call(
    call: Event,
    previous: Event | None,
    following: Event | None,
    copies: dict[int, Event],
    streams: dict[int, tuple[str, str]],
    records: dict[int, tuple[tuple[str, str], int]],
    ends: Ends,
) -> Sync | None:
    """The sync that this call is or completes, if any."""
    if call.name in ALLOCATIONS:
        return Sync("alloc", call.start, call.end, call.thread, None, call=call)
    if is_memcpy(call):
        return None if merges(call, following, copies) else lone_copy(call, copies, ends)
    if call.name.endswith("StreamSynchronize"):
        if previous is not None and merges(previous, call, copies):
            copy = copies[previous.row]
            done = ends.launched_before(call.start, copy.stream, call.end)
            return finish(direction(previous, copy), previous, call, done, copy)
        stream = streams.get(integer(call.args.get("correlation")))
        done = ends.launched_before(call.start, stream, call.end) if stream else ends.last_by(call.end)
        return finish("stream", call, call, done)
    if call.name.endswith("EventSynchronize"):
        recorded = records.get(integer(call.args.get("correlation")))
        done = ends.launched_before(recorded[1], recorded[0], call.end) if recorded else ends.last_by(call.end)
        return finish("event", call, call, done)
    if call.name.endswith(("DeviceSynchronize", "CtxSynchronize")):
        return finish("device", call, call, ends.launched_before(call.start, None, call.end))
    return None


def finish(kind: str, first: Event, last: Event, done: int | None, copy: Event | None = None) -> Sync:
    work_end = first.start if done is None else min(done, last.end)
    return Sync(kind, first.start, last.end, first.thread, work_end, size(copy) if copy else 0, first, copy)


def lone_copy(call: Event, copies: dict[int, Event], ends: Ends) -> Sync | None:
    """A copy that no synchronize follows: a sync if its API is, or if it is pageable and its call lasts as it does."""
    copy = copies.get(call.row)
    kind = direction(call, copy)
    if not kind:
        return None
    waited = (
        copy is not None
        and "pageable" in copy.name.lower()
        and copy.start < call.end  # a copy that begins later was staged
        and (copy.end - copy.start) / 2 <= call.end - call.start
    )
    if "async" in call.name.lower() and not waited:
        return None
    done = ends.launched_before(call.start + 1, copy.stream, call.end) if copy else ends.last_by(call.end)
    return finish(kind, call, call, done, copy)


def merges(call: Event, following: Event | None, copies: dict[int, Event]) -> bool:
    """Whether the next runtime call of the thread is the stream synchronize that belongs to this copy."""
    return (
        is_memcpy(call)
        and following is not None
        and following.name.endswith("StreamSynchronize")
        and (following.start <= call.end + SLACK_NS or same_op(call, following))
        and call.row in copies
        and direction(call, copies[call.row]) != ""
    )


def same_op(call: Event, following: Event) -> bool:
    op = integer(call.args.get("External id", 0))
    return op > 0 and op == integer(following.args.get("External id", 0))


def is_memcpy(call: Event) -> bool:
    name = call.name.lower()
    return "memcpy" in name and "peeraccess" not in name and "attribute" not in name


def direction(call: Event, copy: Event | None) -> str:
    """Dtoh or htod, by the copy's name (the call's, if the copy is not in the trace); empty for any other."""
    result = re.search(r"dtoh|htod", (copy.name if copy else call.name).lower())
    return result[0] if result else ""


def size(copy: Event) -> int:
    return max(0, integer(copy.args.get("bytes")))


def known_streams(trace: Trace) -> dict[int, tuple[str, str]]:
    """Correlation of a synchronize -> its stream, where a `cuda_sync` row tells it."""
    rows = [e for e in trace.events if e.cat == "cuda_sync" and integer(e.args.get("stream")) >= 0]
    return {integer(e.args.get("correlation")): e.stream for e in rows if "stream sync" in e.name.lower()}


def known_events(trace: Trace) -> dict[int, tuple[tuple[str, str], int]]:
    """Correlation of a synchronize -> stream and time of the record that it waits for, where both are in the trace."""
    calls = {integer(e.args.get("correlation")): e.start for e in trace.events if e.cat == "runtime"}
    result = {}
    for row in trace.events:
        record = integer(row.args.get("wait_on_cuda_event_record_corr_id")) if row.cat == "cuda_sync" else -1
        if record > 0 and record in calls and integer(row.args.get("wait_on_stream")) >= 0:
            stream = (str(row.args.get("device")), str(row.args.get("wait_on_stream")))
            result[integer(row.args.get("correlation"))] = stream, calls[record]
    return result


def profilers_own(trace: Trace) -> int:
    """Row of the last device synchronize if no launch follows it: the profiler stops with one; else -1.

    One of the job's own there would be the last but one.
    """
    rows = [e for e in trace.events if e.cat == "runtime" and e.name.endswith(("DeviceSynchronize", "CtxSynchronize"))]
    if not rows:
        return -1
    last = max(rows, key=lambda e: (e.start, e.row))
    steps = [e for e in trace.events if e.cat == "annotation" and e.name.startswith("ProfilerStep#")]
    if any(step.thread == trace.main and step.start <= last.start < step.end for step in steps):
        return -1
    return -1 if any(call.start > last.start for call in trace.launches.values()) else last.row


def threads(trace: Trace) -> list[list[Event]]:
    """The runtime calls of each thread in time order."""
    result: dict[tuple[str, str], list[Event]] = {}
    for event in trace.events:
        if event.cat == "runtime":
            result.setdefault(event.thread, []).append(event)
    return [sorted(calls, key=lambda e: (e.start, e.row)) for calls in result.values()]


def scalars(trace: Trace) -> list[Sync]:
    """`.item()` without a device; those of an optimizer and of a loader are left out, and what a GPU would not read."""
    on_host: dict[tuple[str, str], list[tuple[int, int]]] = {}
    ranges = [event for event in trace.events if event.cat in ("annotation", "cpu_op")]
    loaders = [event for event in ranges if event.name.startswith("enumerate(DataLoader)")]
    for event in loaders or [event for event in ranges if event.name == "dataload_wait"]:
        on_host.setdefault(event.thread, []).append((event.start, event.end))
    for event in ranges:
        if event.name.startswith("Optimizer.step#"):
            on_host.setdefault(event.thread, []).append((event.start, event.end))
    for iteration in iterations(trace):
        on_host.setdefault(trace.main, []).append(iteration.made)
    excluded = {thread: union(spans) for thread, spans in on_host.items()}
    on_device = [event for event in trace.events if event.cat == "cpu_op" and event.name in ON_DEVICE]

    searches = any(event.name.endswith("reducer::search_unused_parameters") for event in ranges)

    def is_of_ddp(read: Event) -> bool:
        """Whether the next op of its thread that is not inside it copies a gradient out of a bucket."""
        later = [e for e in trace.events if e.cat == "cpu_op" and e.thread == read.thread and e.start >= read.end]
        return min(later, key=lambda e: e.start).name.endswith("reducer::copy_bucket_to_grad") if later else False

    return [
        Sync("scalar", event.start, event.end, event.thread, None)
        for event in trace.events
        if event.cat == "cpu_op"
        and event.name == "aten::_local_scalar_dense"
        and not inside(excluded.get(event.thread, []), event.start)
        and not any(o.thread == event.thread and o.start <= event.start and event.end <= o.end for o in on_device)
        and not (searches and is_of_ddp(event))
    ]


def total_syncs(syncs: list[Sync]) -> dict[str, dict[str, int]]:
    """Per kind: number, bytes copied, time blocked, time waited."""
    table: dict[str, dict[str, int]] = {}
    for sync in syncs:
        row = table.setdefault(sync.kind, {"num": 0, "bytes": 0, "blocked_ns": 0, "wait_ns": 0})
        row["num"] += 1
        row["bytes"] += sync.size_bytes
        row["blocked_ns"] += sync.end - sync.start
        row["wait_ns"] += sync.wait_ns
    return table


def running_max(values: list[int]) -> list[int]:
    best: list[int] = []
    for value in values:
        best.append(max(value, best[-1]) if best else value)
    return best
