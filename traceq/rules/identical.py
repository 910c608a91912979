"""The one rule about all ranks together: do they issue the same collectives?"""

from __future__ import annotations

import numpy as np

from traceq.analysis.registry import analyze
from traceq.errors import TraceqError
from traceq.facts.ranks.collective_matching import match
from traceq.facts.ranks.job import job_of
from traceq.facts.ranks.job_collectives import Issued, issued_by_flights
from traceq.model import Run

__all__ = ["IDENTICAL", "first_mismatch"]

IDENTICAL = "collectives identical across ranks"


def first_mismatch(run: Run) -> str:
    """The first place where ranks differ, in words; "" where they do not. Raises TraceqError where that cannot be told:
    a rule that compares nothing must not pass.
    """
    if len(run.traces) < 2:
        raise _refusal(run, f"it compares ranks, and there is one: rank {run.ranks[0]}")
    job = job_of(run)
    if not job.is_one:
        raise _refusal(run, "the windows are minutes apart, not of one job")
    report = analyze(run, "desync")
    if report.findings:
        return report.findings[0].text
    if lost := [caveat.text for caveat in report.caveats if caveat.code == "not_compared"]:
        raise _refusal(run, lost[0])
    issued = job.issued
    if not (issued.groups and all(issued.groups)) and any(calls.sends for calls in job.calls):
        raise _refusal(run, "ranks send to each other, and the trace does not tell its groups apart")
    compared = _compared(issued) | _compared(issued_by_flights(run.flights))
    if alone := sorted(set(run.ranks) - compared):
        noun = "rank" if len(alone) == 1 else "ranks"
        numbers = ", ".join(map(str, alone[:8])) + (" and more" if len(alone) > 8 else "")
        raise _refusal(run, f"{noun} {numbers}: no collective in the trace that another rank's trace holds too")
    return ""


def _compared(issued: Issued) -> set[int]:
    """Ranks with a collective that another one issued too."""
    if not len(issued):
        return set()
    there = match(issued).call >= 0
    shared = there & (there.sum(axis=1) > 1)[:, None]
    return {issued.ranks[at] for at in np.flatnonzero(shared.any(axis=0)).tolist()}


def _refusal(run: Run, reason: str) -> TraceqError:
    return TraceqError(f"{run.path}: cannot answer '{IDENTICAL}': {' '.join(reason.split())}")
