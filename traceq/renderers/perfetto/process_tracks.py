"""One trace as a process of the viewer: its own tracks, derived tracks, and the queue depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceq.frozen import frozen
from traceq.model import Trace
from traceq.renderers.perfetto.derived_tracks import DerivedTrack, queue_depth
from traceq.renderers.perfetto.lanes import lanes
from traceq.renderers.perfetto.original_tracks import original_tracks
from traceq.renderers.perfetto.packets import counter_packets, slice_packets, track_packets
from traceq.renderers.perfetto.slices import Slices, Track

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
