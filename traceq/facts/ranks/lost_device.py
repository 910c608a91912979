"""Ranks that asked a device for work of which their traces show nothing, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.facts.ranks.rank_outline import Outline
from traceq.model import Caveat
from traceq.units import name_ranks

__all__ = ["lost_device_caveats"]


def lost_device_caveats(ranks: Sequence[Outline]) -> tuple[Caveat, ...]:
    """Return one note on all ranks of a job with devices without device rows: their traces look like those of CPUs."""
    lacking = [rank.rank for rank in ranks if rank.lacks_device_rows]
    if not lacking:
        return ()
    where = "" if len(lacking) == len(ranks) else f"{name_ranks(lacking)}: "
    text = (
        f"{where}the profiler recorded no device activity (ProfilerActivity.CUDA is missing, CUPTI was busy, or the "
        "file is cut short): times are the host's, and what a sync costs is not known"
    )
    return (Caveat("no_device_work", text),)
