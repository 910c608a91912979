"""An arm that shares its process and runs out of memory is marked, and the others restart without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

from traceq.recorder.failures.root_cause import LaunchFailure
from traceq.recorder.spec.plan import Plan

__all__ = ["record_shared"]

OnMessage = Callable[[str], None]


def record_shared(
    plan: Plan, run_ranks: Callable[[Plan], LaunchFailure | None], on_message: OnMessage
) -> LaunchFailure | None:
    """Run all arms in one process per rank; return why the run failed, unless only single arms did.

    A process that ran out of memory is not reused: its peers are in a collective and its state is undefined. New
    processes start without the arm.
    """
    while (failure := run_ranks(plan)) and _is_dispensable(plan, failure):
        arm, (status, fault) = failure.arm, failure.arm_status
        on_message(f"arm {arm}: {status}; restarting the other arms without it")
        plan = _without(plan, arm, status, fault)
        for name in ("steps", "stalled", *(planned.arm.name for planned in plan.arms), arm):
            shutil.rmtree(plan.folder.path / name, ignore_errors=True)
    return failure


def _is_dispensable(plan: Plan, failure: LaunchFailure) -> bool:
    """Return True if a step of one arm ran out of memory and no other arm is compared with that arm."""
    needed = {planned.arm.against for planned in plan.arms} | {planned.arm.repeats for planned in plan.arms}
    needed |= {planned.arm.name for planned in plan.arms if planned.arm.baseline}
    return failure.arm_status[0] == "out of memory" and bool(failure.arm) and failure.arm not in needed


def _without(plan: Plan, arm: str, status: str, fault: str) -> Plan:
    marked = [replace(planned.arm, status=status, fault=fault) for planned in plan.arms if planned.arm.name == arm]
    remaining = tuple(planned for planned in plan.arms if planned.arm.name != arm)
    return replace(plan, arms=remaining, marked=(*plan.marked, *marked))
