"""The rule about all ranks together: they issue the same collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.claims.saying import text_of
from traceq.errors import Unanswerable
from traceq.facts.ranks.collective_matching import match_collectives
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.job_collectives import JobCollectives, issued_by_flights
from traceq.report import Report

__all__ = ["IDENTICAL", "first_mismatch"]

IDENTICAL = "collectives identical across ranks"


def first_mismatch(job: Job, reports: Sequence[Report]) -> str:
    """Return the first place where ranks differ by the report on it, in words; "" where they do not.

    Raises Unanswerable where nothing can be compared: such a rule must not pass.
    """
    if len(job.ranks) < 2:
        raise Unanswerable(f"it compares ranks, and the run has only rank {job.ranks[0].rank}")
    if not job.is_concurrent:
        raise Unanswerable("the windows are minutes apart, so they are not of one job")
    report = next(each for each in reports if each.name == "desync")
    if report.findings:
        return text_of(report.findings[0])
    if reasons := [caveat.text for caveat in report.caveats if caveat.code == "not_compared"]:
        raise Unanswerable(" ".join(reasons[0].split()))  # names are untrusted: no line breaks
    issued = job.issued
    if not (issued.groups and all(issued.groups)) and any(calls.has_messages for calls in job.calls):
        raise Unanswerable("ranks send to each other, and the trace does not name its groups")
    compared = _compared(issued) | _compared(issued_by_flights(job.flights))
    if alone := sorted({rank.rank for rank in job.ranks} - compared):
        noun = "rank" if len(alone) == 1 else "ranks"
        numbers = ", ".join(map(str, alone[:8])) + (" and more" if len(alone) > 8 else "")
        raise Unanswerable(f"{noun} {numbers}: no collective in common with the trace of another rank")
    return ""


def _compared(issued: JobCollectives) -> set[int]:
    """Return the ranks with a collective that another rank issued as well."""
    if not len(issued):
        return set()
    is_issued = match_collectives(issued).call >= 0
    shared = is_issued & (is_issued.sum(axis=1) > 1)[:, None]
    return {issued.ranks[index] for index in np.flatnonzero(shared.any(axis=0)).tolist()}
