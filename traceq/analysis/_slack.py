"""How long does a rank wait for others anyway? What shortens its own work by less makes no step shorter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Claim
from traceq.facts.memo import once_per_object
from traceq.facts.ranks.exposed_waits import waiting_times
from traceq.facts.ranks.job import Job
from traceq.intervals import measure_within

__all__ = ["in_vain", "least_waiting_rank", "slack_by_rank", "waits_in_steps"]


@once_per_object
def waits_in_steps(job: Job) -> dict[int, NDArray[np.int64]]:
    """Return, by rank, how long it waits in collectives for others in each of its counted steps, int64[K] ns.

    Empty where the waits are not known; without ranks of which they are not.
    """
    steps_of, waits_ns = {rank.rank: rank.steps for rank in job.ranks}, dict[int, NDArray[np.int64]]()
    for rank, waiting in waiting_times(job, "later").items():
        windows = steps_of[rank].window[steps_of[rank].counted]
        waits_ns[rank] = measure_within(waiting, windows[:, 0], windows[:, 1])
    return waits_ns


def slack_by_rank(job: Job) -> dict[int, float]:
    """Return, by rank, how long it waits for others in its mean counted step, less the rank that waits least, ns."""
    waits_ns = {rank: float(ns.mean()) for rank, ns in waits_in_steps(job).items()}
    least_ns = min(waits_ns.values(), default=0.0)
    return {rank: ns - least_ns for rank, ns in waits_ns.items()}


def least_waiting_rank(slack_ns: Mapping[int, float]) -> int | None:
    """Return the rank for which the others wait more than it waits for them; None where the waits are not known."""
    return min(slack_ns, key=lambda rank: slack_ns[rank], default=None)


def in_vain(claim: Claim, slack_ns: float) -> Claim:
    """Return the claim that something shortens a rank's own work, as one of no use to the step."""
    return replace(claim, gain=(0, 0), gain_by="", measures={**claim.measures, "slack_ns": round(slack_ns)})
