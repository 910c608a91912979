"""How much does the profiler slow down what it shows?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.model import Trace
from traceq.report import Column, Report, Table
from traceq.units import Unit, format_value

__all__ = ["merge", "perturbation_words", "summarize"]

POSITION = 12

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("unprofiled_ns", "unprofiled", Unit.NS),
    Column("num_unprofiled", "steps", Unit.COUNT),
    Column("profiled_ns", "profiled", Unit.NS),
    Column("num_profiled", "steps", Unit.COUNT),
    Column("slowdown_pct", "slower", Unit.DELTA_PERCENT),
)


@dataclass(frozen=True, slots=True)
class _Slowdown:
    """One rank's unprofiled median step beside the mean of its traced steps."""

    rank: int
    unprofiled_ns: float
    num_unprofiled: int
    profiled_ns: float
    num_profiled: int


def summarize(trace: Trace) -> None:
    """Nothing: what is compared are the steps, which every rank leaves."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Traced steps of each rank against its unprofiled ones of the same arm; no rows without these. People read it
    below the steps.
    """
    rows = tuple(
        (
            found.rank,
            round(found.unprofiled_ns),
            found.num_unprofiled,
            round(found.profiled_ns),
            found.num_profiled,
            100 * (found.profiled_ns / found.unprofiled_ns - 1),
        )
        for found in _slowdowns(job)
    )
    return Report("perturbation", (Table("perturbation", "What the profiler costs", _COLUMNS, rows),))


def perturbation_words(job: Job) -> str:
    """`The profiler makes them 1.14 times as long: unprofiled 48.2 ms (median of 64).`, of the job; "" if unknown."""
    found = _slowdowns(job)
    if not found:
        return ""
    profiled_ns, unprofiled_ns = (
        max(getattr(rank, name) for rank in found) for name in ("profiled_ns", "unprofiled_ns")
    )
    median = f"{format_value(unprofiled_ns, Unit.NS)}, median of {found[0].num_unprofiled:,}"
    return f"Profiled they take {profiled_ns / unprofiled_ns:.2f} times as long as unprofiled ({median})."


def _slowdowns(job: Job) -> list[_Slowdown]:
    found = ((rank, _unprofiled(job, rank.rank)) for rank in job.ranks if rank.steps.marked)
    return [_slowdown(rank, unprofiled) for rank, unprofiled in found if unprofiled.size]


def _slowdown(rank: Outline, unprofiled: NDArray[np.int64]) -> _Slowdown:
    known = rank.steps
    window = known.window[known.counted]
    profiled_ns = float(np.mean(window[:, 1] - window[:, 0]))
    return _Slowdown(rank.rank, float(np.median(unprofiled)), len(unprofiled), profiled_ns, len(window))


def _unprofiled(job: Job, rank: int) -> NDArray[np.int64]:
    """int64[N] ns: unprofiled steps of the run's arm on a rank, or of halves, which is what a copied trace knows."""
    if job.timings is not None:
        known = job.timings.step_ns
        return known[rank] if rank < len(known) else known[:0].ravel()
    halves = [
        times[rank]
        for pairs in job.pairs
        for name, of_b in ((pairs.a, False), (pairs.b, True))
        if name == job.arm
        for times in [np.where(pairs.b_second == of_b, pairs.second_ns, pairs.first_ns)]
        if rank < len(times)
    ]
    return np.concatenate(halves) if halves else np.zeros(0, np.int64)
