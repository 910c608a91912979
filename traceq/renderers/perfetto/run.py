"""All ranks of a run in one file, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from traceq.model import Run
from traceq.renderers.perfetto.clock import one_clock
from traceq.renderers.perfetto.derived import derived
from traceq.renderers.perfetto.process_tracks import Shown, packets_of
from traceq.report import Finding

__all__ = ["write_perfetto"]


def write_perfetto(run: Run, findings: Sequence[Finding], file: BinaryIO) -> None:
    """Write the run as a Perfetto trace: of each rank a process with traceq's tracks, its device's and its threads'.

    Times are those of the traces, nanosecond by nanosecond; of several ranks they are absolute, each clock set right by
    as much as collectives tell.
    """
    clock = one_clock(run)
    for index, trace in enumerate(run.traces):
        name = f"rank {trace.rank}"
        shown = Shown(trace, index + 1, name, int(clock.offset[index]), f" · {name}" if len(run.traces) > 1 else "")
        known = [finding for finding in findings if index == 0 or finding.key]
        for chunk in packets_of(shown, derived(trace, known, clock.waiting[index])):
            file.write(chunk)
