"""A plan of unprofiled steps on one CPU rank."""

from __future__ import annotations

from traceq.model import Arm
from traceq.recorder.spec.plan import Plan, PlannedArm

__all__ = ["timed_plan"]


def timed_plan(*names: str, steps: int = 32) -> Plan:
    """A plan of these arms, of which `off` is the baseline, without profiled steps."""
    return Plan(
        recipe="",
        run_id="",
        out="",
        device="cpu",
        num_ranks=1,
        steps=steps,
        trace_steps=0,
        seed=3,
        parameters={},
        arms=tuple(PlannedArm(Arm(name, "", baseline=name == "off"), name, {}) for name in names),
        reseeds=False,
    )
