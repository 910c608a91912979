"""One trace in the viewer: a process with the trace's own tracks, those that traceq adds, and how deep its queue is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from traceq.model import Trace
from traceq.renderers.perfetto.derived import Rows, queue_depth
from traceq.renderers.perfetto.lanes import lanes
from traceq.renderers.perfetto.original_tracks import recorded
from traceq.renderers.perfetto.packets import counter_packets, slice_packets, track_packets
from traceq.renderers.perfetto.slices import Slices, Track

__all__ = ["Shown", "packets_of"]

_PROCESS = 1_000_000  # tracks, sequences and flows of each process are numbered from its own multiple on
_FLOWS = 1 << 32
_QUEUE_DEPTH = 9_000
_OURS = "traceq"


@dataclass(frozen=True, slots=True)
class Shown:
    """A trace as one process of the viewer: the `number`-th from 1, `offset_ns` added to its times; `suffix` tells its
    tracks of ours from those of other ranks.
    """

    trace: Trace
    number: int
    name: str
    offset_ns: int
    suffix: str

    @property
    def process(self) -> int:
        """Uuid of the process; those of its tracks follow."""
        return self.number * _PROCESS


def packets_of(shown: Shown, ours: Sequence[Rows]) -> Iterator[bytes]:
    """The trace's own tracks, ours, and the depth of its queue."""
    trace, process = shown.trace, shown.process
    name = shown.name + (f" · {trace.device}" if trace.device else "")
    yield track_packets([Track(process, name, shown.number, pid=shown.number)])
    tracks, slices = recorded(trace, process, first_flow=shown.number * _FLOWS)
    yield track_packets(tracks)
    yield from slice_packets(slices, shown.offset_ns, sequence=process)
    uuid = process + 1 + len(tracks)
    for order, rows in enumerate(ours, start=1):
        tracks, slices = _on_lanes(rows, rows.title + shown.suffix, uuid, process, order)
        yield track_packets(tracks)
        yield from slice_packets(slices, shown.offset_ns, sequence=uuid)
        uuid += len(tracks)
    depth = queue_depth(trace)
    if len(depth.at):
        yield track_packets([Track(uuid, "queue depth" + shown.suffix, _QUEUE_DEPTH, process, is_counter=True)])
        yield from counter_packets(uuid, depth.at + shown.offset_ns, depth.num, sequence=uuid)


def _on_lanes(rows: Rows, title: str, first: int, parent: int, order: int) -> tuple[list[Track], Slices]:
    """Rows on as many tracks of one name as they need; uuids from `first` on."""
    start, end = rows.spans[:, 0], rows.spans[:, 1]
    lane = lanes(np.zeros(len(rows), np.int64), start, end)
    tracks = [Track(first + number, title, 100 * order + number, parent) for number in range(int(lane.max()) + 1)]
    nothing = np.zeros(len(rows), np.int64)
    return tracks, Slices(
        track=first + lane,
        start=start,
        end=end,
        name=rows.name,
        names=rows.names,
        category=nothing,
        categories=(_OURS,),
        flow=nothing if rows.flow is None else rows.flow,
        arguments=rows.arguments,
    )
