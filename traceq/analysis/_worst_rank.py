"""The rank on which a rule's finding matters most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from traceq.analysis._job_gain import job_gain
from traceq.analysis._slack import found_in_vain, in_vain
from traceq.analysis._wording import in_traced_steps
from traceq.claims.claim import BY_JOB_REPLAY, Basis
from traceq.facts.ranks.job import Job
from traceq.report import Finding
from traceq.whatif.intervention import Intervention

__all__ = ["on_the_worst_rank"]


def on_the_worst_rank(
    job: Job,
    findings: Iterable[Finding | None],
    slack_ns: Mapping[int, float] | None = None,
    change: Intervention | None = None,
    *,
    is_of_job: bool = False,
) -> tuple[Finding, ...]:
    """Return the finding with the most time over all ranks, or nothing where no rank has one.

    `findings` in the order of the ranks. The text names the steps that it rests on, and the rank of several. With
    `slack_ns`, by rank, time counts as far as it exceeds what the rank waits for others anyway; that it is in vain is
    not said of texts that tell what the job gains (`is_of_job`). The gain is that of all ranks by `change`, where it is
    given and these can be replayed together.
    """
    slack_ns = slack_ns or {}
    by_rank = [(finding, rank) for finding, rank in zip(findings, job.ranks, strict=True) if finding is not None]
    if not by_rank:
        return ()
    finding, worst = max(by_rank, key=lambda pair: pair[0].ns - slack_ns.get(pair[1].rank, 0.0))
    rank, num_steps = worst.rank, int(worst.steps.counted.sum())
    own_slack_ns = slack_ns.get(rank, 0.0)
    is_vain = own_slack_ns >= finding.ns > 0 and not is_of_job
    if not finding.text:
        subject = replace(finding.subject, rank=rank) if len(job.ranks) > 1 else finding.subject
        claim = replace(finding, subject=subject, basis=Basis(num_steps * worst.steps.marked))
        if change is not None and (gain := job_gain(job, change)) is not None:
            return (replace(claim, gain=gain.saved_ns, gain_by=BY_JOB_REPLAY),)
        return (in_vain(claim, own_slack_ns) if is_vain else claim,)
    is_named = not job.ranks[0].steps.marked or "traced steps" in finding.text
    basis = [] if is_named else [in_traced_steps(job, num_steps)]
    notes = [*basis, *([f"rank {rank}"] if len(job.ranks) > 1 else [])]
    noted = replace(finding, text=f"{finding.text} ({', '.join(notes)})") if notes else finding
    if len(job.ranks) > 1:
        noted = replace(noted, evidence=f"rank {rank}: {noted.evidence}" if noted.evidence else f"on rank {rank}")
    return (found_in_vain(noted, rank, own_slack_ns) if is_vain else noted,)
