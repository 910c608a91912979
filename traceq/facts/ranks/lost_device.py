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
    why, times = "ProfilerActivity.CUDA is missing, CUPTI was busy, or the file is cut short", "the host's"
    if all(rank.has_counters for rank in ranks if rank.lacks_device_rows):
        why = "it measured counters of kernels instead (`cuda_profiler_range`)"
        times = "those of a host that waits while each kernel runs by itself, and no job's"
    lost = f"the profiler recorded no device activity ({why})"
    if unread := next((rank.device for rank in ranks if rank.lacks_device_rows and rank.device != "cpu"), ""):
        lost = f"traceq does not read the rows of this device, {unread}"
    text = f"{where}{lost}: times are {times}, and what a sync costs is not known"
    return (Caveat("no_device_work", text),)
