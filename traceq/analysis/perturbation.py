"""How much does the profiler slow down what it shows?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import mean_step_ns, step_lengths
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import measure_within, span_index, spans
from traceq.model import Category, Caveat, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

_MOST_PER_EVENT_NS = 5_000
"""What recording one event of the host takes at most: an op with its shapes and stack, several times what is usual."""

_MUCH_LONGER = 1.5
"""Part of an unprofiled step from which a traced one is another step: tables of it then say so in their title."""

_FEWEST = 8
"""Unprofiled steps from which their range tells something."""


@frozen
class SlowdownRow:
    """The median unprofiled and the mean profiled step."""

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
    """Return `Traced steps: 1.14x unprofiled ones (48.2 ms, median of 64).`, of the job; "" if unknown."""
    rows = _slowdowns(job)
    if not rows:
        return ""
    median = format_value(max(row.unprofiled_ns for row in rows), Unit.NS)
    return sentences.TRACED.format(slowdown=_slowdown_of_job(rows), median=median, num=rows[0].num_unprofiled)


def much_longer_words(job: Job) -> str:
    """Return `, 3.39x unprofiled ones` where traced steps are so much longer that their times mislead; else ""."""
    rows = _slowdowns(job)
    slowdown = _slowdown_of_job(rows) if rows else 1.0
    return sentences.MUCH_LONGER.format(slowdown=slowdown) if slowdown >= _MUCH_LONGER else ""


def most_overhead_ns(trace: Trace) -> int:
    """Return the most by which the profiler can have made a counted step of a trace longer, median of its steps."""
    events, all_steps = trace.events, steps(trace)
    rows, is_host = events.rows(Category.OVERHEAD), np.ones(len(events), np.bool_)
    is_host[device_work(trace).rows] = False
    step = span_index(all_steps.host, events.ts[is_host])
    num = np.bincount(step[step >= 0], minlength=len(all_steps))
    own_ns = measure_within(spans(events.ts[rows], events.end[rows]), all_steps.host[:, 0], all_steps.host[:, 1])
    return int(np.median((own_ns + _MOST_PER_EVENT_NS * num)[all_steps.counted]))


def unlike_steps(job: Job, most_overhead: Sequence[int]) -> tuple[Caveat, ...]:
    """Return a caveat where traced steps are unlike the unprofiled ones, of the rank on which most; else nothing.

    Their median is below all unprofiled steps, or above all by more than the profiler can take: `most_overhead` ns of
    each rank. A copied trace, of whose unprofiled steps only means are known, does not tell.
    """
    if job.timings is None:
        return ()
    unlike = [
        _unlike(rank, _unprofiled(job, rank.rank), most) for rank, most in zip(job.ranks, most_overhead, strict=True)
    ]
    text = max(unlike, default=(0.0, ""))[1]
    return (Caveat("unlike_steps", text),) if text else ()


def _unlike(rank: Outline, unprofiled: NDArray[np.int64], most_overhead: int) -> tuple[float, str]:
    """Return (ns by which the median of a rank's traced steps is outside, the caveat), (0, "") where it is inside."""
    if not rank.steps.marked or len(unprofiled) < _FEWEST:
        return 0.0, ""
    traced, least, most = float(np.median(step_lengths(rank.steps))), int(unprofiled.min()), int(unprofiled.max())
    outside = max(least - traced, traced - most - most_overhead)
    if outside <= 0:
        return 0.0, ""
    times = {"traced": traced, "median": np.median(unprofiled), "least": least, "most": most, "overhead": most_overhead}
    texts = {name: format_value(float(ns), Unit.NS) for name, ns in times.items()}
    return outside, sentences.UNLIKE["longer" if traced > most else "shorter"].format(rank=rank.rank, **texts)


def _slowdown_of_job(rows: Sequence[SlowdownRow]) -> float:
    return max(row.profiled_ns for row in rows) / max(row.unprofiled_ns for row in rows)


def _slowdowns(job: Job) -> list[SlowdownRow]:
    marked = ((rank, _unprofiled(job, rank.rank)) for rank in job.ranks if rank.steps.marked)
    return [_slowdown(rank, unprofiled) for rank, unprofiled in marked if unprofiled.size]


def _slowdown(rank: Outline, unprofiled: NDArray[np.int64]) -> SlowdownRow:
    profiled_ns, unprofiled_ns = mean_step_ns(rank.steps), float(np.median(unprofiled))
    slowdown_pct, num = 100 * (profiled_ns / unprofiled_ns - 1), int(rank.steps.counted.sum())
    return SlowdownRow(rank.rank, round(unprofiled_ns), len(unprofiled), round(profiled_ns), num, slowdown_pct)


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
