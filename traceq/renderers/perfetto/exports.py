"""Files for the viewer: all ranks of a run on a common clock, or two traces one above the other.

Two traces are aligned at their first whole steps, with the causes of their difference. A trace is a process of the
viewer; above its own tracks are those that traceq derives: steps, phases, where the time goes, syncs, collectives, and
the depth of the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Claim
from traceq.claims.saying import text_of
from traceq.compare.attributed_spans import Charges, charges
from traceq.compare.cause_names import sync_name
from traceq.compare.result import Cause, Diff
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
from traceq.model import Run, Trace
from traceq.renderers.limits import CAUSES_LINKED
from traceq.renderers.perfetto.packets import (
    Argument,
    Slices,
    Track,
    counter_packets,
    lanes,
    slice_packets,
    track_packets,
)
from traceq.renderers.perfetto.worst_place import WorstPlace, common_clock, not_before_zero, syncs_of
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
    time_ns, depth = _queue_depth(trace)
    if len(time_ns):
        yield track_packets([Track(uuid, "queue depth" + process.suffix, _QUEUE_DEPTH, parent, is_counter=True)])
        yield from counter_packets(uuid, time_ns + offset_ns, depth, sequence=uuid)


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


def _queue_depth(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[M] ns, int64[M] pieces of device work that are launched and not started from then on)."""
    work = device_work(trace)
    launched, started = trace.events.ts[work.call[work.linked]], work.start[work.linked]
    time_ns, change = np.concatenate([launched, started]), np.repeat([1, -1], len(started))
    order = np.argsort(time_ns, kind="stable")
    time_ns, depth = time_ns[order], np.cumsum(change[order])
    last = np.r_[np.diff(time_ns) > 0, np.ones(min(len(time_ns), 1), np.bool_)]
    return time_ns[last], np.maximum(depth[last], 0)


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


_LINKS = 1 << 52
_DELTA = 1  # uuid and process id of tracks that belong to both sides


def write_pair(a: Run, b: Run, diff: Diff, file: BinaryIO) -> None:
    """Write A and B of a diff as one Perfetto trace, with B shifted to A's first whole step.

    Of several ranks the one that the diff explains. A counter above both has how far B is behind A, by step; a track on
    each side has the time charged to the largest causes, with arrows between the two sides of a cause. Raises
    UsageFault if the diff has no traced step.
    """
    ours, theirs = _traces(a, b, diff)
    causes = diff.causes[:CAUSES_LINKED]
    charged = charges(ours, causes), charges(theirs, causes)
    links = _links(ours, theirs, *charged)
    offsets = _offsets(ours, theirs)
    sides = zip((ours, theirs), (diff.a_name, diff.b_name), offsets, strict=True)
    file.write(_delta(ours, theirs, offsets[0]))
    for number, ((trace, name, offset_ns), side, flow) in enumerate(zip(sides, charged, links, strict=True), start=2):
        title = f"{'AB'[number - 2]} {name}"
        process = TraceProcess(trace, number, f"{title} · rank {trace.rank}", offset_ns, f" · {title}")
        differs = replace(_causes_track(side, causes), flow=flow)
        for chunk in process_packets(process, (differs, *derived_tracks(trace, (), np.full(len(trace.events), -1)))):
            file.write(chunk)


def pair_place(a: Run, b: Run, diff: Diff) -> WorstPlace:
    """Return the step of A that differs most from its counterpart."""
    ours, theirs = _traces(a, b, diff)
    lengths, others = _lengths(ours, theirs)
    step = int(np.argmax(np.abs(others - lengths)))
    start, end = steps(ours).window[steps(ours).counted][step].tolist()
    end = max(end, start + int(others[step]))
    offset_ns, _ = _offsets(ours, theirs)
    return WorstPlace(ours.rank, start + offset_ns, end + offset_ns, diff.answer.lead)


def _traces(a: Run, b: Run, diff: Diff) -> tuple[Trace, Trace]:
    """Return the traces that the diff explains."""
    rank = diff.traced.rank if diff.traced else -1
    ours, theirs = (next((trace for trace in run.traces if trace.rank == rank), run.traces[0]) for run in (a, b))
    return ours, theirs


def _offsets(ours: Trace, theirs: Trace) -> tuple[int, int]:
    """Return what is added to the times of A and B, ns: both first whole steps begin together."""
    shift = _first(ours) - _first(theirs)
    offset = not_before_zero((ours, theirs), ours.base_time_ns + np.array([0, shift], np.int64))
    return int(offset[0]), int(offset[1])


def _first(trace: Trace) -> int:
    return int(steps(trace).window[steps(trace).counted][0, 0])


def _lengths(ours: Trace, theirs: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return int64[K] ns for A and B: the durations of their whole steps, as many as both have."""
    windows = [steps(trace).window[steps(trace).counted] for trace in (ours, theirs)]
    num = min(map(len, windows))
    lengths, others = (window[:num, 1] - window[:num, 0] for window in windows)
    return lengths, others


def _delta(ours: Trace, theirs: Trace, offset_ns: int) -> bytes:
    """Return a counter of how far B is behind A at the end of each step of A."""
    lengths, others = _lengths(ours, theirs)
    ends = np.cumsum(lengths)
    time_ns = _first(ours) + offset_ns + np.r_[0, ends]
    behind = np.r_[0, np.cumsum(others) - ends]
    tracks = [
        Track(_DELTA, "B - A", _DELTA, pid=_DELTA),
        Track(_DELTA + 1, "B is behind A, ns", 1, _DELTA, is_counter=True),
    ]
    return track_packets(tracks) + b"".join(counter_packets(_DELTA + 1, time_ns, behind, sequence=_DELTA))


def _causes_track(side: Charges, causes: tuple[Cause, ...]) -> DerivedTrack:
    texts = [sync_name(cause) if cause.kind == "sync" else cause.name for cause in causes]
    names = [f"{format_value(cause.delta_ns, Unit.DELTA_NS)} {text}" for cause, text in zip(causes, texts, strict=True)]
    shift = np.array([cause.delta_ns for cause in causes], np.int64)
    lines = [cause.line for cause in causes]
    line_of = np.array([index if line else -1 for index, line in enumerate(lines)], np.int64)
    line = line_of[side.cause] if causes else np.empty(0, np.int64)
    arguments = (
        Argument("kind", side.cause, [cause.kind for cause in causes]),
        Argument("phase", side.cause, [cause.phase for cause in causes]),
        Argument("delta_a_step", side.cause, [format_value(ns, Unit.DELTA_NS) for ns in shift.tolist()]),
        Argument("line", line, lines),
    )
    return DerivedTrack("what differs", side.parts, side.cause, names, arguments)


def _links(ours: Trace, theirs: Trace, a: Charges, b: Charges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return flow numbers that join, in each step, the longest span of a cause on one side to that on the other."""
    longest_a, longest_b = _longest(ours, a), _longest(theirs, b)
    flow_a, flow_b = np.zeros(len(a.cause), np.int64), np.zeros(len(b.cause), np.int64)
    for number, key in enumerate(sorted(longest_a.keys() & longest_b.keys())):
        flow_a[longest_a[key]] = flow_b[longest_b[key]] = _LINKS + number
    return flow_a, flow_b


def _longest(trace: Trace, side: Charges) -> dict[tuple[int, int], int]:
    """Return (step, cause) -> index of the longest span."""
    windows = steps(trace).window[steps(trace).counted]
    step = np.searchsorted(windows[:, 0], side.parts[:, 0], "right") - 1
    inside = np.flatnonzero((step >= 0) & (side.parts[:, 0] < windows[step, 1]))
    length = (side.parts[:, 1] - side.parts[:, 0])[inside]
    order = inside[np.argsort(length, kind="stable")]
    return dict(zip(zip(step[order].tolist(), side.cause[order].tolist(), strict=True), order.tolist(), strict=True))


def write_perfetto(run: Run, findings: Sequence[Claim], file: BinaryIO) -> None:
    """Write the run as a Perfetto trace: per rank a process with derived tracks, device streams and threads.

    Times are exact to the nanosecond; those of several ranks are absolute, with clocks corrected by collectives.
    """
    clock = common_clock(run)
    for index, trace in enumerate(run.traces):
        name = f"rank {trace.rank}"
        suffix = f" · {name}" if len(run.traces) > 1 else ""
        process = TraceProcess(trace, index + 1, name, int(clock.offset[index]), suffix)
        shown = [finding for finding in findings if index == 0 or finding.key]
        for chunk in process_packets(process, derived_tracks(trace, shown, clock.waiting[index])):
            file.write(chunk)
