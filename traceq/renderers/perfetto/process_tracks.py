"""Tracks of one trace: its own, as a process of the viewer, and above them those that traceq derives.

Derived are steps, phases, where the time goes, syncs, collectives, and the depth of the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Claim
from traceq.claims.saying import text_of
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import unique_inverse
from traceq.facts.events.nesting import tracks
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.intervals import Spans
from traceq.model import Trace
from traceq.renderers.perfetto.packets import (
    Argument,
    Slices,
    Track,
    counter_packets,
    lanes,
    slice_packets,
    track_packets,
)
from traceq.renderers.perfetto.worst_place import syncs_of
from traceq.units import Unit, format_value


@frozen(eq=False)
class DerivedTrack:
    """One track of N slices: `spans` int64[N, 2] ns, `name` int64[N] into `names`; `flow` int64[N] as in Slices."""

    title: str
    spans: Spans
    name: NDArray[np.int64]
    names: Sequence[str]
    arguments: Sequence[Argument] = ()
    flow: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.spans)


@frozen(eq=False)
class _QueueDepth:
    """`num` int64[M] pieces of device work that are launched but not started, from `time_ns` int64[M] on."""

    time_ns: NDArray[np.int64]
    num: NDArray[np.int64]


_PROCESS = 1_000_000  # tracks, sequences and flows of the n-th process are numbered from n times this
_FLOWS = 1 << 32
_QUEUE_DEPTH = 9_000
_CATEGORY = "traceq"


@frozen
class TraceProcess:
    """A trace as one process of the viewer: the `number`-th, from 1, with `offset_ns` added to its times.

    `suffix` distinguishes its derived tracks from those of other ranks.
    """

    trace: Trace
    number: int
    name: str
    offset_ns: int
    suffix: str

    @property
    def uuid(self) -> int:
        """Uuid of the process, followed by those of its tracks."""
        return self.number * _PROCESS


def process_packets(process: TraceProcess, derived: Sequence[DerivedTrack]) -> Iterator[bytes]:
    """Yield the trace's own tracks, the derived ones, and the queue depth."""
    trace, parent, offset_ns = process.trace, process.uuid, process.offset_ns
    name = process.name + (f" · {trace.device}" if trace.device else "")
    yield track_packets([Track(parent, name, process.number, pid=process.number)])
    tracks, slices = original_tracks(trace, parent, first_flow=process.number * _FLOWS)
    yield track_packets(tracks)
    yield from slice_packets(slices, offset_ns, sequence=parent)
    uuid = parent + 1 + len(tracks)
    for order, track in enumerate(filter(len, derived), start=1):
        tracks, slices = _on_lanes(track, track.title + process.suffix, uuid, parent, order)
        yield track_packets(tracks)
        yield from slice_packets(slices, offset_ns, sequence=uuid)
        uuid += len(tracks)
    depth = _queue_depth(trace)
    if len(depth.time_ns):
        yield track_packets([Track(uuid, "queue depth" + process.suffix, _QUEUE_DEPTH, parent, is_counter=True)])
        yield from counter_packets(uuid, depth.time_ns + offset_ns, depth.num, sequence=uuid)


def _on_lanes(track: DerivedTrack, title: str, first: int, parent: int, order: int) -> tuple[list[Track], Slices]:
    """Return the slices on as many tracks of one title as they need, with uuids from `first`."""
    start, end = track.spans[:, 0], track.spans[:, 1]
    lane = lanes(np.zeros(len(track), np.int64), start, end)
    tracks = [Track(first + number, title, 100 * order + number, parent) for number in range(int(lane.max()) + 1)]
    zeros = np.zeros(len(track), np.int64)
    return tracks, Slices(
        track=first + lane,
        start=start,
        end=end,
        name=track.name,
        names=track.names,
        category=zeros,
        categories=(_CATEGORY,),
        flow=zeros if track.flow is None else track.flow,
        arguments=track.arguments,
    )


_DEVICE, _MAIN_THREAD, _OTHER_THREADS = 10_000, 20_000, 30_000  # orders of their first tracks, from top to bottom


def original_tracks(trace: Trace, parent: int, first_flow: int) -> tuple[list[Track], Slices]:
    """Return the tracks of all threads and streams, and every event as a slice, in the trace's own time.

    The tracks' uuids follow `parent`; flows are numbered from `first_flow`.
    """
    events = trace.events
    track, lane = tracks(trace), lanes(tracks(trace), events.ts, events.end)
    joint = track * (lane.max(initial=0) + 1) + lane
    _, first, row_track = np.unique(joint, return_index=True, return_inverse=True)
    is_device = np.zeros(len(first), np.bool_)
    is_device[row_track[device_work(trace).rows]] = True
    is_main = track[first] == main_track(trace)
    order = np.where(is_device, _DEVICE, np.where(is_main, _MAIN_THREAD, _OTHER_THREADS)) + np.arange(len(first))
    described = [
        Track(parent + 1 + index, name, position, parent)
        for index, (name, position) in enumerate(zip(_track_names(trace, first), order.tolist(), strict=True))
    ]
    name, names = _used(events.name, events.strings)
    category, categories = _used(events.cat, events.strings)
    return described, Slices(
        track=parent + 1 + row_track,
        start=events.ts,
        end=events.end,
        name=name,
        names=names,
        category=category,
        categories=categories,
        flow=_flows(trace, first_flow),
        arguments=_arguments(trace),
    )


def _track_names(trace: Trace, first: NDArray[np.int64]) -> list[str]:
    """Return the name of the thread or stream of each row in `first`, or its number if it has no name."""
    events = trace.events
    thread_names = {(thread.pid, thread.tid): thread.name.strip() for thread in trace.threads}
    names = []
    for row in first.tolist():
        pid, tid = events.strings[events.pid[row]], events.strings[events.tid[row]]
        names.append(thread_names.get((pid, tid)) or f"thread {tid} of {pid}")
    return names


def _used(ids: NDArray[np.int32], strings: tuple[str, ...]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return (index of each, the texts that occur)."""
    distinct, inverse = unique_inverse(ids, len(strings) + 1)
    texts = (*strings, "")
    return inverse, tuple(texts[number] for number in distinct.tolist())


def _flows(trace: Trace, first: int) -> NDArray[np.int64]:
    """Return one number for each launching call and the work it launched; 0 for other events."""
    work = device_work(trace)
    calls, inverse = np.unique(work.call[work.linked], return_inverse=True)
    flow = np.zeros(len(trace.events), np.int64)
    flow[calls] = first + np.arange(len(calls))
    flow[work.rows[work.linked]] = first + inverse
    return flow


def _arguments(trace: Trace) -> list[Argument]:
    """Return bytes, correlation, and the recorded arguments of collectives."""
    events, messages = trace.events, trace.events.messages
    arguments = [Argument("bytes", events.bytes), Argument("correlation", events.correlation)]

    def for_all_rows(values: NDArray[np.int64]) -> NDArray[np.int64]:
        padded = np.full(len(events), -1)
        padded[messages.row] = values
        return padded

    for name, ids in (("collective", messages.name), ("dtype", messages.dtype), ("group", messages.group)):
        numbers, texts = _used(ids, events.strings)
        arguments.append(Argument(name, for_all_rows(np.where(ids >= 0, numbers, -1)), texts))
    sizes = (("elements_in", messages.elements_in), ("elements_out", messages.elements_out), ("seq", messages.sequence))
    return arguments + [Argument(name, for_all_rows(values)) for name, values in sizes]


def derived_tracks(trace: Trace, findings: Sequence[Claim], waits: NDArray[np.int64]) -> tuple[DerivedTrack, ...]:
    """Return the tracks of one trace that are not empty, in order.

    `waits` int64[N] ns holds for each collective call, by its row of Events, how long this rank waits in it for others;
    -1 = unknown.
    """
    tracks = (
        _steps(trace),
        _phases(trace),
        _findings(trace, findings),
        _partition(trace),
        _exposed(trace),
        _syncs(trace),
        _collectives(trace, waits),
    )
    return tuple(track for track in tracks if len(track))


def _queue_depth(trace: Trace) -> _QueueDepth:
    """Return the number of launched and not started pieces of device work over time; empty without a device."""
    work = device_work(trace)
    launched, started = trace.events.ts[work.call[work.linked]], work.start[work.linked]
    time_ns, change = np.concatenate([launched, started]), np.repeat([1, -1], len(started))
    order = np.argsort(time_ns, kind="stable")
    time_ns, depth = time_ns[order], np.cumsum(change[order])
    last = np.r_[np.diff(time_ns) > 0, np.ones(min(len(time_ns), 1), np.bool_)]
    return _QueueDepth(time_ns[last], np.maximum(depth[last], 0))


def _steps(trace: Trace) -> DerivedTrack:
    all_steps = steps(trace)
    partial = all_steps.partial.tolist()
    names = [name + (" (partial)" if cut else "") for name, cut in zip(all_steps.names, partial, strict=True)]
    return DerivedTrack("steps", all_steps.window, np.arange(len(all_steps)), names)


def _phases(trace: Trace) -> DerivedTrack:
    labels = phases(trace)
    return DerivedTrack("phases", labels.main.parts, labels.main.label, labels.names)


def _partition(trace: Trace) -> DerivedTrack:
    """Return one slice for each span of one category and phase."""
    partition = activity(trace)
    changes = (np.diff(partition.category) != 0) | (np.diff(partition.phase) != 0)
    first = np.flatnonzero(np.r_[True, changes])
    last = np.r_[first[1:] - 1, len(partition.category) - 1]
    spans = np.column_stack([partition.parts[first, 0], partition.parts[last, 1]])
    names = [category.name.lower() for category in TimeCategory]
    phase = Argument("phase", partition.phase[first].astype(np.int64), phases(trace).names)
    return DerivedTrack("where the time goes", spans, partition.category[first].astype(np.int64), names, (phase,))


def _exposed(trace: Trace) -> DerivedTrack:
    spans = activity(trace).when(TimeCategory.EXPOSED_COMM)
    return DerivedTrack("exposed communication", spans, np.zeros(len(spans), np.int64), ("exposed_comm",))


def _syncs(trace: Trace) -> DerivedTrack:
    rank_syncs = syncs(trace)
    origin = rank_syncs.origin
    site = np.where(origin.line > 0, origin.line, origin.op)
    pairs, name = np.unique(np.column_stack([rank_syncs.kind.astype(np.int64), site]), axis=0, return_inverse=True)
    names = [f"{SYNC_KINDS[kind]} {origin.texts[text]}".strip() for kind, text in pairs.tolist()]
    arguments = (
        Argument("cost_ns", rank_syncs.cost),
        Argument("blocked_ns", rank_syncs.blocked),
        Argument("wait_ns", rank_syncs.wait),
        Argument("bytes", rank_syncs.bytes),
        Argument("op", _absent_if_empty(origin.op), origin.texts),
        Argument("module", _absent_if_empty(origin.module), origin.texts),
        Argument("phase", rank_syncs.phase, phases(trace).names),
    )
    spans = np.column_stack([rank_syncs.start, rank_syncs.start + rank_syncs.blocked])
    return DerivedTrack("syncs", spans, name.reshape(-1), names, arguments)


def _absent_if_empty(text: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the indices with -1 for the first text of Origins, which is empty."""
    return np.where(text > 0, text, -1).astype(np.int64)


def _collectives(trace: Trace, waits: NDArray[np.int64]) -> DerivedTrack:
    """Return kernels of collectives, or their calls if there are no kernels."""
    work, calls, kernels = device_work(trace), collective_calls(trace), collective_kernels(trace)
    if len(kernels.work):
        call, name = kernels.call, kernels.name
        spans = np.column_stack([work.start[kernels.work], work.end[kernels.work]])
        phase = phases(trace).work_phase[kernels.work]
    else:
        call, name, phase = np.arange(len(calls)), calls.name, calls.phase
        spans = np.column_stack([trace.events.ts[calls.rows], trace.events.end[calls.rows]])
    called = call >= 0
    size, waited = np.full(len(call), -1), np.full(len(call), -1)
    size[called], waited[called] = calls.size[call[called]], waits[calls.rows[call[called]]]
    pairs, number = np.unique(np.column_stack([name, size]), axis=0, return_inverse=True)
    names = [_collective_name(*pair) for pair in pairs.tolist()]
    duration = spans[:, 1] - spans[:, 0]
    mbps = np.where((size > 0) & (duration > 0), size * 1000 // np.maximum(duration, 1), -1)
    arguments = (
        Argument("bytes", size),
        Argument("algbw_mb_per_s", mbps),
        Argument("waits_for_others_ns", waited),
        Argument("phase", phase, phases(trace).names),
    )
    return DerivedTrack("collectives", spans, number.reshape(-1), names, arguments)


def _collective_name(name: int, size_bytes: int) -> str:
    return COLLECTIVE_NAMES[name] + (f" {format_value(size_bytes, Unit.BYTES)}" if size_bytes >= 0 else "")


def _findings(trace: Trace, findings: Sequence[Claim]) -> DerivedTrack:
    """Return instants: findings about a sync where it costs most, others at the start of the first whole step."""
    rank_syncs = syncs(trace)
    first = int(steps(trace).window[steps(trace).counted][0, 0])
    times = []
    for finding in findings:
        rows = syncs_of(trace, finding)
        times.append(int(rank_syncs.start[rows[np.argmax(rank_syncs.cost[rows])]]) if len(rows) else first)
    instants = np.array(times, np.int64)
    names = [text_of(finding) for finding in findings]
    return DerivedTrack("findings", np.column_stack([instants, instants]), np.arange(len(names)), names)
