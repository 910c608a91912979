"""Arms that are so much slower than the baseline that a few of their steps answer the question."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from traceq.recorder.rank.rank_state import Rank
from traceq.runs.step_log import StepLine

__all__ = ["slow_arms"]


def slow_arms(rank: Rank, warm_up: Sequence[StepLine]) -> dict[str, str]:
    """Return the arms that the plan leaves out after these steps, the same on every rank, each with the reason.

    By the fastest step of an arm, so that neither its first, which may compile, nor a busy machine counts as slow.
    """
    times_ns: dict[str, list[int]] = {}
    for step in warm_up:
        times_ns.setdefault(step.arm, []).append(step.device_ns or step.wall_ns)
    (baseline,) = (planned.arm.name for planned in rank.plan.arms if planned.arm.baseline)
    baseline_ns = median(times_ns[baseline])
    ratios = {arm: min(times) / baseline_ns for arm, times in times_ns.items() if arm != baseline}
    of_ranks = rank.world.gather(ratios)
    least = {arm: min(each[arm] for each in of_ranks) for arm in ratios}
    return {
        arm: f"each of its first {len(times_ns[arm])} steps took at least {ratio:.1f} times a step of {baseline}: "
        "not measured further"
        for arm, ratio in least.items()
        if ratio >= rank.plan.max_slowdown
    }
