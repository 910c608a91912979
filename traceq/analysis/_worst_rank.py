"""The rank on which a rule's claim matters most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from traceq.analysis._job_gain import job_gain
from traceq.analysis._slack import in_vain
from traceq.claims.claim import BY_JOB_REPLAY, Basis, Claim
from traceq.facts.ranks.job import Job
from traceq.whatif.intervention import Intervention

__all__ = ["on_the_worst_rank"]


def on_the_worst_rank(
    job: Job,
    claims: Iterable[Claim | None],
    slack_ns: Mapping[int, float] | None = None,
    change: Intervention | None = None,
) -> tuple[Claim, ...]:
    """Return the claim with the most time over all ranks, with that rank and its steps; nothing where no rank has one.

    `claims` in the order of the ranks. With `slack_ns`, by rank, time counts as far as it exceeds what the rank waits
    for others anyway; where it does nowhere, the step gains nothing. The gain is that of all ranks by `change`, where
    it is given and these can be replayed together.
    """
    slack_ns = slack_ns or {}
    by_rank = [(claim, rank) for claim, rank in zip(claims, job.ranks, strict=True) if claim is not None]
    if not by_rank:
        return ()
    claim, worst = max(by_rank, key=lambda pair: pair[0].ns - slack_ns.get(pair[1].rank, 0.0))
    subject = replace(claim.subject, rank=worst.rank) if len(job.ranks) > 1 else claim.subject
    claim = replace(claim, subject=subject, basis=Basis(int(worst.steps.counted.sum()) * worst.steps.marked))
    if change is not None and (gain := job_gain(job, change)) is not None:
        return (replace(claim, gain=gain.saved_ns, gain_by=BY_JOB_REPLAY),)
    own_slack_ns = slack_ns.get(worst.rank, 0.0)
    return (in_vain(claim, own_slack_ns) if own_slack_ns >= claim.ns > 0 else claim,)
