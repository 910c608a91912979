"""A rule on every rank, and the rank on which it matters most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traceq.facts.ranks.job import Job
from traceq.report import Finding

__all__ = ["on_the_worst_rank"]


def on_the_worst_rank(job: Job, found: Iterable[Finding | None]) -> tuple[Finding, ...]:
    """What a rule found on the rank where it gives back most, which is named if there are several; nothing if it found
    nothing on any. `found` in the order of the ranks.
    """
    told = [(finding, rank.rank) for finding, rank in zip(found, job.ranks, strict=True) if finding is not None]
    if not told:
        return ()
    finding, rank = max(told, key=lambda each: each[0].ns)
    return (replace(finding, text=f"{finding.text} (rank {rank})") if len(job.ranks) > 1 else finding,)
