"""How much does the profiler slow down what it shows?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.links.steps import steps
from traceq.model import Run, Trace
from traceq.report import Column, Report, Table
from traceq.units import Unit, format_value

__all__ = ["analyze", "perturbation_words"]

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


def analyze(run: Run) -> Report:
    """Traced steps of each rank against its unprofiled ones of the same arm; no rows without these. People read it
    below the steps."""
    rows = tuple(
        (
            found.rank,
            round(found.unprofiled_ns),
            found.num_unprofiled,
            round(found.profiled_ns),
            found.num_profiled,
            100 * (found.profiled_ns / found.unprofiled_ns - 1),
        )
        for found in _slowdowns(run)
    )
    return Report("perturbation", (Table("perturbation", "What the profiler costs", _COLUMNS, rows),))


def perturbation_words(run: Run) -> str:
    """`The profiler makes them 1.14 times as long: unprofiled 48.2 ms (median of 64).`, of the job; "" if unknown."""
    found = _slowdowns(run)
    if not found:
        return ""
    profiled_ns, unprofiled_ns = (
        max(getattr(rank, name) for rank in found) for name in ("profiled_ns", "unprofiled_ns")
    )
    median = f"{format_value(unprofiled_ns, Unit.NS)}, median of {found[0].num_unprofiled:,}"
    return f"Profiled they take {profiled_ns / unprofiled_ns:.2f} times as long as unprofiled ({median})."


def _slowdowns(run: Run) -> list[_Slowdown]:
    found = ((trace, _unprofiled(run, trace.rank)) for trace in run.traces if steps(trace).marked)
    return [_slowdown(trace, unprofiled) for trace, unprofiled in found if unprofiled.size]


def _slowdown(trace: Trace, unprofiled: NDArray[np.int64]) -> _Slowdown:
    known = steps(trace)
    window = known.window[known.counted]
    profiled_ns = float(np.mean(window[:, 1] - window[:, 0]))
    return _Slowdown(trace.rank, float(np.median(unprofiled)), len(unprofiled), profiled_ns, len(window))


def _unprofiled(run: Run, rank: int) -> NDArray[np.int64]:
    """int64[N] ns: unprofiled steps of the run's arm on a rank, or of halves, which is what a copied trace knows."""
    if run.timings is not None:
        known = run.timings.step_ns
        return known[rank] if rank < len(known) else known[:0].ravel()
    halves = [
        times[rank]
        for pairs in run.pairs
        for name, of_b in ((pairs.a, False), (pairs.b, True))
        if name == run.arm
        for times in [np.where(pairs.b_second == of_b, pairs.second_ns, pairs.first_ns)]
        if rank < len(times)
    ]
    return np.concatenate(halves) if halves else np.zeros(0, np.int64)
