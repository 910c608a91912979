"""Runs of kernels in which the device did something else, as a note."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.analysis._basis import step_lengths
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.op_work import RankWork
from traceq.model import Caveat
from traceq.units import Unit, format_value

__all__ = ["interrupted_runs"]

_NOTABLE = 0.01
"""Part of the counted steps of its rank from which an interrupted run is named."""


def interrupted_runs(job: Job, parts: Sequence[RankWork]) -> tuple[Caveat, ...]:
    """Return a note on the longest interrupted run of all ranks, and on how many more there are."""
    runs = [
        (run, rank.rank)
        for rank, part in zip(job.ranks, parts, strict=True)
        for run in part.interruptions
        if run.ns >= _NOTABLE * step_lengths(rank.steps).sum()
    ]
    if not runs:
        return ()
    run, rank = max(runs, key=lambda pair: pair[0].ns)
    of_rank = f" on rank {rank}" if len(parts) > 1 else ""
    more = f"; {len(runs) - 1:,} more run{'s' if len(runs) > 2 else ''} like it" if len(runs) > 1 else ""
    times = round(run.ns / max(run.usual_ns, 1))
    text = (
        f"one run of {run.kernel} in {run.op} takes {format_value(run.ns, Unit.NS)}{of_rank}, {times:,} times as long "
        f"as others of its shapes: the device did something else meanwhile{more}"
    )
    return (Caveat("interrupted", text),)
