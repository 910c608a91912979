"""What the traces of a job do not show of its devices, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.claims.limits import SHOWN
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.sentences import (
    LOST,
    MORE_RANKS,
    NO_ROWS,
    NOT_READ,
    NOT_RECORDED,
    OF_COUNTERS,
    OPENS,
    UNRECORDED,
    WHY_COUNTERS,
    WHY_NONE,
)
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
    more = MORE_RANKS.format(num=len(affected) - 1) if len(affected) > 1 else ""
    what = LOST if rank.steps.opens_ns is None else OPENS
    return (Caveat("unrecorded", UNRECORDED.format(percent=percent, where=where, more=more, what=what)),)


def lost_device_caveats(ranks: Sequence[Outline]) -> tuple[Caveat, ...]:
    """Return one note on all ranks of a job with devices without device rows: their traces look like those of CPUs."""
    lacking = [rank.rank for rank in ranks if rank.lacks_device_rows and not _has_told(rank)]
    if not lacking:
        return ()
    where = "" if len(lacking) == len(ranks) else f"{name_ranks(lacking)}: "
    has_counters = all(rank.has_counters for rank in ranks if rank.lacks_device_rows)
    times, why = (OF_COUNTERS, WHY_COUNTERS) if has_counters else ("the host's", WHY_NONE)
    unread = next((rank.device for rank in ranks if rank.lacks_device_rows and rank.device != "cpu"), "")
    lost = NOT_READ.format(device=unread) if unread else NOT_RECORDED.format(why=why)
    return (Caveat("no_device_work", NO_ROWS.format(where=where, lost=lost, times=times)),)


def _has_told(rank: Outline) -> bool:
    """Return whether a caveat of the reader tells that the rank's times on a device are left out."""
    return any(caveat.code == "autograd_profiler" for caveat in rank.caveats)
