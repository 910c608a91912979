"""The rank on which a rule's finding matters most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traceq.analysis._wording import in_traced_steps
from traceq.facts.ranks.job import Job
from traceq.report import Finding

__all__ = ["on_the_worst_rank"]


def on_the_worst_rank(job: Job, findings: Iterable[Finding | None]) -> tuple[Finding, ...]:
    """Return the finding with the most time over all ranks, or nothing where no rank has one.

    `findings` in the order of the ranks. The text names the steps that it rests on, and the rank of several.
    """
    by_rank = [(finding, rank.rank) for finding, rank in zip(findings, job.ranks, strict=True) if finding is not None]
    if not by_rank:
        return ()
    finding, rank = max(by_rank, key=lambda pair: pair[0].ns)
    basis = [in_traced_steps(job)] if job.ranks[0].steps.marked else []
    notes = [*basis, *([f"rank {rank}"] if len(job.ranks) > 1 else [])]
    return (replace(finding, text=f"{finding.text} ({', '.join(notes)})") if notes else finding,)
