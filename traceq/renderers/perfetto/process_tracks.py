"""One trace as a process of the viewer: its own tracks, derived tracks, and the queue depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import unique_inverse
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.steps import main_track
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.renderers.perfetto.derived_tracks import DerivedTrack, queue_depth
from traceq.renderers.perfetto.packets import (
    Argument,
    Slices,
    Track,
    counter_packets,
    lanes,
    slice_packets,
    track_packets,
)

__all__ = ["TraceProcess", "process_packets"]

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
    depth = queue_depth(trace)
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
