"""How much does the profiler slow down what it shows?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

__all__ = ["merge", "perturbation_words", "summarize"]

POSITION = 12


@frozen
class SlowdownRow:
    """One rank's median unprofiled step and the mean of its profiled steps."""

    rank: int = column("rank", Unit.COUNT)
    unprofiled_ns: int = column("unprofiled", Unit.NS)
    num_unprofiled: int = column("steps", Unit.COUNT)
    profiled_ns: int = column("profiled", Unit.NS)
    num_profiled: int = column("steps", Unit.COUNT)
    slowdown_pct: float = column("slower", Unit.DELTA_PERCENT)


def summarize(trace: Trace) -> None:
    """Return nothing: the steps that are compared are in every rank's outline."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return each rank's profiled steps against its unprofiled ones of the same arm; no rows without unprofiled steps.

    People read the result in the note below the steps.
    """
    return Report("perturbation", (Table.of("perturbation", "Profiler overhead", SlowdownRow, _slowdowns(job)),))


def perturbation_words(job: Job) -> str:
    """Return `Profiler overhead: 1.14x (unprofiled steps take 48.2 ms, median of 64).`, of the job; "" if unknown."""
    rows = _slowdowns(job)
    if not rows:
        return ""
    profiled_ns, unprofiled_ns = max(row.profiled_ns for row in rows), max(row.unprofiled_ns for row in rows)
    median = f"{format_value(unprofiled_ns, Unit.NS)}, median of {rows[0].num_unprofiled:,}"
    return f"Profiler overhead: {profiled_ns / unprofiled_ns:.2f}x (unprofiled steps take {median})."


def _slowdowns(job: Job) -> list[SlowdownRow]:
    marked = ((rank, _unprofiled(job, rank.rank)) for rank in job.ranks if rank.steps.marked)
    return [_slowdown(rank, unprofiled) for rank, unprofiled in marked if unprofiled.size]


def _slowdown(rank: Outline, unprofiled: NDArray[np.int64]) -> SlowdownRow:
    window = rank.steps.window[rank.steps.counted]
    profiled_ns, unprofiled_ns = float(np.mean(window[:, 1] - window[:, 0])), float(np.median(unprofiled))
    slowdown_pct = 100 * (profiled_ns / unprofiled_ns - 1)
    return SlowdownRow(rank.rank, round(unprofiled_ns), len(unprofiled), round(profiled_ns), len(window), slowdown_pct)


def _unprofiled(job: Job, rank: int) -> NDArray[np.int64]:
    """Return int64[N] ns: a rank's unprofiled steps of the run's arm, or its mean steps by half in a copied trace."""
    if job.timings is not None:
        step_ns = job.timings.step_ns
        return step_ns[rank] if rank < len(step_ns) else step_ns[:0].ravel()
    halves = [
        times[rank]
        for pairs in job.pairs
        for name, of_b in ((pairs.a, False), (pairs.b, True))
        if name == job.arm
        for times in [np.where(pairs.b_second == of_b, pairs.second_ns, pairs.first_ns)]
        if rank < len(times)
    ]
    return np.concatenate(halves) if halves else np.zeros(0, np.int64)
