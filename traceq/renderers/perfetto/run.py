"""All ranks of a run in one file, on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from traceq.model import Run, Trace
from traceq.renderers.perfetto.clock import one_clock
from traceq.renderers.perfetto.derived import Rows, derived, queue_depth
from traceq.renderers.perfetto.lanes import lanes
from traceq.renderers.perfetto.packets import counter_packets, slice_packets, track_packets
from traceq.renderers.perfetto.recorded import recorded
from traceq.renderers.perfetto.slices import Slices, Track
from traceq.report import Finding

__all__ = ["write_perfetto"]

_RANK = 1_000_000  # tracks, sequences and flows of each rank are numbered from its own multiple on
_FLOWS = 1 << 32
_QUEUE_DEPTH = 9_000
_OURS = "traceq"


def write_perfetto(run: Run, findings: Sequence[Finding], file: BinaryIO) -> None:
    """Write the run as a Perfetto trace: of each rank a process with traceq's tracks, its device's and its threads'.

    Times are those of the traces, nanosecond by nanosecond; of several ranks they are absolute, each clock set right by
    as much as collectives tell.
    """
    clock = one_clock(run)
    for index, trace in enumerate(run.traces):
        name = f"rank {trace.rank}"
        shown = _Shown(trace, index + 1, name, int(clock.offset[index]), f" · {name}" if len(run.traces) > 1 else "")
        known = [finding for finding in findings if index == 0 or finding.key]
        for chunk in _packets(shown, derived(trace, known, clock.waiting[index])):
            file.write(chunk)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A trace as one process of the viewer: the `number`-th from 1, `offset_ns` added to its times; `suffix` tells its
    tracks of ours from those of other ranks."""

    trace: Trace
    number: int
    name: str
    offset_ns: int
    suffix: str

    @property
    def process(self) -> int:
        """Uuid of the process; those of its tracks follow."""
        return self.number * _RANK


def _packets(shown: _Shown, ours: Sequence[Rows]) -> Iterator[bytes]:
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
        flow=nothing,
        arguments=rows.arguments,
    )
