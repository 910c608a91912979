"""All ranks of a run in one file, on a common clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from traceq.claims.claim import Claim
from traceq.model import Run
from traceq.renderers.perfetto.clock import common_clock
from traceq.renderers.perfetto.derived_tracks import derived_tracks
from traceq.renderers.perfetto.process_tracks import TraceProcess, process_packets

__all__ = ["write_perfetto"]


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
