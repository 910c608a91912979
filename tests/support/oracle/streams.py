"""Device work by launch and stream, and what streams wait for, of a trace of one session of the profiler."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from .reader import Event, Trace, integer

__all__ = ["NEVER", "Device", "stream_waits"]

NEVER = -(10**30)
AT_ONCE_NS = 10_000
Stream = tuple[str, str]


class Device:
    """Device work by index, in order of starts.

    `launched` is ascending on each stream: work without a call was launched with the work before it, else before the
    trace. `position` is its place in launch order, `launches` (time, place, index) of each thread and each stream;
    `early` work precedes what is launched on its stream.
    """

    def __init__(self, trace: Trace) -> None:
        self.ops = sorted(trace.device_ops, key=lambda op: (op.start, op.row))
        self.calls = [trace.launches.get(op.row) for op in self.ops]
        self.index = {op.row: index for index, op in enumerate(self.ops)}
        self.streams: dict[Stream, list[int]] = defaultdict(list)
        for index, op in enumerate(self.ops):
            self.streams[op.stream].append(index)
        self.launched = [NEVER] * len(self.ops)
        self.early = [False] * len(self.ops)
        for indices in self.streams.values():
            self._read_stream(indices)
        self.position = [0] * len(self.ops)
        in_order = sorted(range(len(self.ops)), key=lambda index: (self.launched[index], index))
        for place, index in enumerate(in_order):
            self.position[index] = place
        self.launches: dict[tuple[str, str, str], list[tuple[int, int, int]]] = defaultdict(list)
        for index, call in enumerate(self.calls):
            if call is not None:
                key = call.start, self.position[index], index
                self.launches["thread", *call.thread].append(key)
                self.launches["stream", *self.ops[index].stream].append(key)
        for launches in self.launches.values():
            launches.sort()
        self.by_end = sorted(range(len(self.ops)), key=lambda index: (self.ops[index].end, index))
        self.ends = [self.ops[index].end for index in self.by_end]

    def _read_stream(self, indices: list[int]) -> None:
        latest, has_launch = NEVER, any(self.calls[index] for index in indices)
        is_early = has_launch
        for index in indices:
            call = self.calls[index]
            is_early = is_early and call is None
            self.early[index] = is_early
            latest = max(latest, call.start) if call else latest
            self.launched[index] = latest

    def last_launched(self, before: int) -> Iterator[int]:
        """Of every stream the last work launched before an instant."""
        for indices in self.streams.values():
            count = bisect_left(indices, before, key=lambda index: self.launched[index])
            if count:
                yield indices[count - 1]

    def last_ended(self, by: int) -> int | None:
        """The last work of any stream to end by an instant."""
        count = bisect_right(self.ends, by)
        return self.by_end[count - 1] if count else None

    def previous_ends(self) -> list[int]:
        """When the work before each one on its stream ended."""
        previous = [NEVER] * len(self.ops)
        for indices in self.streams.values():
            for before, after in pairwise(indices):
                previous[after] = self.ops[before].end
        return previous


def stream_waits(trace: Trace, device: Device) -> set[tuple[int, int]]:
    """(work, work of another stream that it waits for): of calls that make a stream wait, and by coincidence of times.

    The order of threads' launches at one instant is that of the work, a choice that the definitions leave open.
    """
    calls = [event for event in trace.events if event.cat == "runtime" and "StreamWaitEvent" in event.name]
    rows = {integer(e.args.get("correlation")): e for e in reversed(trace.events) if e.cat == "cuda_sync"}
    recordings = recorded_on(trace)
    pairs, inferred = set[tuple[int, int]](), set[int]()
    for call in calls:
        correlation = integer(call.args.get("correlation"))
        row = rows.get(correlation)
        named = row.stream if row and "Stream Wait Event" in row.name and integer(row.args.get("stream")) >= 0 else None
        delayed = first_delayed(device, call, named)
        if correlation in recordings:
            stream, recorded_ns = recordings[correlation]
            indices = device.streams.get(stream, [])
            count = bisect_left(indices, recorded_ns, key=lambda index: device.launched[index])
            if delayed is not None and count and is_after(device, delayed, indices[count - 1]):
                pairs.add((delayed, indices[count - 1]))
        elif delayed is not None:
            inferred.add(delayed)
    for delayed in inferred:
        pairs |= {(delayed, on) for on in given_before(device, delayed) if is_after(device, delayed, on)}
    return pairs | coincidences(device, min((call.start for call in calls), default=10**30)) | early_waits(device)


def recorded_on(trace: Trace) -> dict[int, tuple[Stream, int]]:
    """Correlation of a wait -> stream and time of the recording of its event, where both are in the trace."""
    calls = {integer(e.args.get("correlation")): e.start for e in reversed(trace.events) if e.cat == "runtime"}
    result = {}
    for row in trace.events:
        record = integer(row.args.get("wait_on_cuda_event_record_corr_id")) if row.cat == "cuda_sync" else -1
        if record > 0 and record in calls:
            stream = (str(row.args.get("device")), str(integer(row.args.get("wait_on_stream"))))
            result[integer(row.args.get("correlation"))] = stream, calls[record]
    return result


def first_delayed(device: Device, call: Event, stream: Stream | None) -> int | None:
    """The first work on the stream, else that the thread launches, once the call has returned."""
    following = device.launches.get(("stream", *stream) if stream else ("thread", *call.thread), [])
    place = bisect_left(following, (call.end, -1, -1))
    return following[place][2] if place < len(following) else None


def is_after(device: Device, waiting: int, on: int) -> bool:
    work, other = device.ops[waiting], device.ops[on]
    return work.stream != other.stream and other.end <= work.start


def given_before(device: Device, waiting: int) -> list[int]:
    """The last work that each stream was given before; no trace has more than 64 streams."""
    assert len(device.streams) <= 64
    place, last = device.position[waiting], []
    for indices in device.streams.values():
        count = bisect_left(indices, place, key=lambda index: device.position[index])
        last += indices[count - 1 : count] if count else []
    return last


def coincidences(device: Device, first_wait: int) -> set[tuple[int, int]]:
    """Work that starts late, but at once after other work, if streams wait by then or both are of one launch."""
    done, latencies = device.previous_ends(), []
    for index, op in enumerate(device.ops):
        call = device.calls[index]
        if call is not None and done[index] <= call.start:
            latencies.append(op.start - call.start)
    latency = max(int(median(latencies)), 0) if latencies else AT_ONCE_NS
    pairs = set()
    for index, op in enumerate(device.ops):
        call, on = device.calls[index], device.last_ended(op.start)
        ready = call.start + min(op.start - call.start, latency) if call else NEVER
        ready = max(ready, min(done[index], op.start))
        if on is None or ready == NEVER or device.position[on] >= device.position[index]:
            continue
        is_late = op.start - device.ops[on].end <= AT_ONCE_NS and op.start - ready > AT_ONCE_NS
        if is_late and (op.start > first_wait or (call is not None and device.calls[on] is call)):
            pairs.add((index, on))
    return pairs


def early_waits(device: Device) -> set[tuple[int, int]]:
    """Of work from before the trace: what ended on another stream within 12 us before its start, if that held it up."""
    by_end = [index for index in device.by_end if device.early[index]]
    ends, done, pairs = [device.ops[index].end for index in by_end], device.previous_ends(), set()
    for index in by_end:
        op = device.ops[index]
        for on in reversed(by_end[: bisect_right(ends, op.start)]):
            end = device.ops[on].end
            if op.start - end >= 12_000 or end - 1_000 <= done[index]:
                break
            if device.ops[on].stream != op.stream:
                pairs.add((index, on))
                break
    return pairs
