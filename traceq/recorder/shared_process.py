"""Arms that share a process: when one runs out of memory it is marked, and the others are recorded from the start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

from traceq.recorder.process.root_cause import Failed
from traceq.recorder.spec.plan import Plan

__all__ = ["record_together"]

OnNews = Callable[[str], None]


def record_together(plan: Plan, run_ranks: Callable[[Plan], Failed | None], on_news: OnNews) -> Failed | None:
    """Run all arms in one process a rank; why the run ended, where that is no matter of one arm.

    A process that ran out of memory is not gone on with: its peers are in a collective that it left, and what it holds
    is anybody's guess. So new ones start, without the arm.
    """
    while (failed := run_ranks(plan)) and _can_do_without(plan, failed):
        arm, (status, fault) = failed.arm, failed.of_arm
        on_news(f"arm {arm}: {status}; the others start again without it")
        plan = _without(plan, arm, status, fault)
        for name in ("steps", "stalled", *(planned.arm.name for planned in plan.arms), arm):
            shutil.rmtree(plan.folder.path / name, ignore_errors=True)
    return failed


def _can_do_without(plan: Plan, failed: Failed) -> bool:
    """It failed in a step of one arm, for memory, and no other arm is compared with that one."""
    needed = {planned.arm.against for planned in plan.arms} | {planned.arm.repeats for planned in plan.arms}
    needed |= {planned.arm.name for planned in plan.arms if planned.arm.baseline}
    return failed.of_arm[0] == "out of memory" and bool(failed.arm) and failed.arm not in needed


def _without(plan: Plan, arm: str, status: str, fault: str) -> Plan:
    marked = [replace(planned.arm, status=status, fault=fault) for planned in plan.arms if planned.arm.name == arm]
    left = tuple(planned for planned in plan.arms if planned.arm.name != arm)
    return replace(plan, arms=left, marked=(*plan.marked, *marked))
