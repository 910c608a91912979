"""What a finding about time rests on: unprofiled steps where a run has them, else steps of a trace that agree."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.claims.limits import LARGE, NEARLY_ALL, NOTABLE
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import OTHER
from traceq.facts.timeline.steps import Steps
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.frozen import frozen
from traceq.stats.means import BLOCK, block_means, lowest_mean
from traceq.whatif.limits import LEAST_STEPS

Times = NDArray[np.float64]

MOST_UNRECORDED = 0.05
"""Part of the counted steps in which unrecorded work runs from which it is not known how long phases compute."""


@frozen
class UnprofiledShare:
    """Mean time of a phase in the unprofiled steps of one rank, and its percentage of the step.

    `exceeds` the least percentage if the lower end of the 95 % interval does, or nearly all of the steps.
    """

    rank: int
    num_steps: int
    ns: int
    pct: float
    exceeds: bool


def unprofiled_share(job: Job, phase: re.Pattern[str], least_pct: float) -> UnprofiledShare | None:
    """Return the share of the phases of such a name on the rank where it is largest.

    None where no such phase was timed, or fewer than two blocks of steps, which are too few for an interval.
    """
    return _share(job, unprofiled_phase_ns(job, phase), least_pct)


def is_told_once(once_ns: float, steps_ns: float) -> bool:
    """Return whether so much of the steps is once that a claim tells it, and all others are about the rest."""
    return once_ns >= LARGE * steps_ns


def other_share(job: Job, least_pct: float) -> UnprofiledShare | None:
    """Return the share of what is in none of the timed phases, likewise; None where no phase was timed."""
    if job.timings is None or not any(name != OTHER for name in job.timings.phases):
        return None
    return _share(job, unprofiled_phases(job.timings)[-1].ns.astype(np.float64), least_pct)


def _share(job: Job, phase_ns: Times | None, least_pct: float) -> UnprofiledShare | None:
    if job.timings is None or phase_ns is None or phase_ns.shape[1] < 2 * BLOCK:
        return None
    step_ns = job.timings.step_ns.astype(np.float64)
    rank = int((phase_ns.sum(axis=1) / step_ns.sum(axis=1)).argmax())
    of_phase, of_step = phase_ns[rank], step_ns[rank]
    is_in_nearly_all = bool(np.mean(100 * of_phase >= least_pct * of_step) >= NEARLY_ALL)  # whatever a pause adds
    return UnprofiledShare(
        rank=rank,
        num_steps=len(of_step),
        ns=round(float(of_phase.mean())),
        pct=100 * float(of_phase.mean() / of_step.mean()),
        exceeds=is_in_nearly_all or lowest_mean(block_means(of_phase - least_pct / 100 * of_step)) > 0,
    )


def unprofiled_phase_ns(job: Job, phase: re.Pattern[str]) -> Times | None:
    """float64[R, S]: time of the phases of such a name in the unprofiled steps; None where none was timed."""
    timings = job.timings
    index = [number for number, name in enumerate(timings.phases) if phase.search(name)] if timings is not None else []
    if timings is None or not index or not timings.step_ns.size:
        return None
    phase_ns: Times = timings.phase_ns[..., index].sum(axis=2).astype(np.float64)
    return phase_ns


def ranks_differ(step_ns: NDArray[np.int64]) -> bool:
    """Return whether the slowest of the ranks (int64[R, S]) is slower than the fastest by 1 %, beyond their scatter."""
    means = step_ns.mean(axis=1)
    longer = (step_ns[means.argmax()] - step_ns[means.argmin()]).astype(np.float64)
    is_much = float(longer.mean()) >= NOTABLE * float(means.max())
    return is_much and lowest_mean(block_means(longer)) > 0


def holds_in_steps(ns: Times, step_ns: Times, least_pct: float) -> bool:
    """Return whether a time is at least this percentage of most steps, and its share above 0 beyond their scatter.

    `ns`, `step_ns` float64[K] of the counted steps. One or two have no scatter to speak of (the interval of two that
    differ by a third includes 0): all of them have to reach the percentage, and the finding says how many they are.
    """
    in_most = 2 * int(np.count_nonzero(100 * ns >= least_pct * step_ns)) > len(ns)
    return in_most and (len(ns) < LEAST_STEPS or lowest_mean(ns / step_ns) > 0)


def exceeds_in_mean(ns: Times, step_ns: Times, least_pct: float) -> bool:
    """Return whether a time is at least this percentage of the mean step beyond its scatter, in however few of them.

    As waits for a loader with several workers, which bring as many batches at once.
    """
    return len(ns) >= LEAST_STEPS and 100 * lowest_mean(ns / step_ns) >= least_pct


def recurs(steps_ns: Sequence[int], steps: Steps, least_pct: float) -> bool:
    """Return whether a time is at least this percentage of each counted step, or of most and beyond their scatter.

    Of times that are never negative, as what a replay saves: chance alone gives these no sign.
    """
    ns, step_ns = np.array(steps_ns, np.float64), step_lengths(steps)
    return bool((100 * ns >= least_pct * step_ns).all()) or holds_in_steps(ns, step_ns, least_pct)


def step_lengths(steps: Steps) -> Times:
    """float64[K] ns: the windows of the counted steps."""
    lengths: Times = np.diff(steps.window[steps.counted])[:, 0].astype(np.float64)
    return lengths
