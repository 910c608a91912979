"""What the traces of a job do not show of its devices, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.claims.limits import SHOWN
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.steps import extent, steps
from traceq.facts.timeline.time_partition import unrecorded
from traceq.intervals import measure, measure_within
from traceq.model import Caveat, Trace
from traceq.units import Unit, format_value, name_ranks


def unrecorded_share(trace: Trace) -> float:
    """Return the part of the trace in which the device does work that the trace does not show."""
    start, end = extent(trace)
    return measure(unrecorded(trace)) / max(end - start, 1)


def share_inside_steps(trace: Trace) -> float:
    """Return the same part after the first step begins: there the trace has lost events, or others use the device."""
    start, end = extent(trace)
    opens_ns = steps(trace).opens_ns
    first = np.array([start if opens_ns is None else opens_ns])
    return int(measure_within(unrecorded(trace), first, np.array([end]))[0]) / max(end - start, 1)


def unrecorded_caveats(ranks: Sequence[Outline], shares: Sequence[float]) -> tuple[Caveat, ...]:
    """Return one note on all ranks with unrecorded work that matters; `shares` are as of `unrecorded_share`."""
    affected = [(share, rank) for share, rank in zip(shares, ranks, strict=True) if share >= SHOWN]
    if not affected:
        return ()
    share, rank = max(affected, key=lambda each: each[0])
    percent = format_value(100 * share, Unit.PERCENT)
    where = f" of rank {rank.rank}" if len(ranks) > 1 else ""
    more = f" (so do {len(affected) - 1} more ranks)" if len(affected) > 1 else ""
    is_prefix = rank.steps.opens_ns is not None
    what = (
        "steps begin after it: record from a synchronised start"
        if is_prefix
        else "it is `unrecorded` in the partition: were events lost, or do others use the device?"
    )
    text = f"{percent} of the window{where} waits for work that the trace does not show{more}; {what}"
    return (Caveat("unrecorded", text),)


def lost_device_caveats(ranks: Sequence[Outline]) -> tuple[Caveat, ...]:
    """Return one note on all ranks of a job with devices without device rows: their traces look like those of CPUs."""
    lacking = [rank.rank for rank in ranks if rank.lacks_device_rows and not _has_told(rank)]
    if not lacking:
        return ()
    where = "" if len(lacking) == len(ranks) else f"{name_ranks(lacking)}: "
    times = "the host's"
    why = "of MPS it records none, ProfilerActivity.CUDA is missing, CUPTI was busy, or the file is cut short"
    if all(rank.has_counters for rank in ranks if rank.lacks_device_rows):
        why = "it measured counters of kernels instead (`cuda_profiler_range`)"
        times = "those of a host that waits while each kernel runs by itself, and no job's"
    lost = f"the profiler recorded no device activity ({why})"
    if unread := next((rank.device for rank in ranks if rank.lacks_device_rows and rank.device != "cpu"), ""):
        lost = f"traceq does not read the rows of this device, {unread}"
    text = f"{where}{lost}: times are {times}, and what a sync costs is not known"
    return (Caveat("no_device_work", text),)


def _has_told(rank: Outline) -> bool:
    """Return whether a caveat of the reader tells that the rank's times on a device are left out."""
    return any(caveat.code == "autograd_profiler" for caveat in rank.caveats)
