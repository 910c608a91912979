"""Diffs of a change whose cost was measured in two contexts."""

from __future__ import annotations

from dataclasses import replace

from made_pairs import MS, recording

from traceq.compare.diff import diff_runs
from traceq.compare.result import Diffs
from traceq.compare.verdict import arm_interactions
from traceq.model import Arm, Manifest, Pairs, Run

__all__ = ["diffs_of"]

ARMS = (
    Arm("off", "", baseline=True),
    Arm("on", ""),
    Arm("off_alone", ""),
    Arm("on_alone", "", against="off_alone", repeats="on"),
)
MANIFEST = Manifest(1, "r", "r", "?", {}, ARMS, (), 1, 1, "complete")


def diffs_of(*, here_ms: float, there_ms: float) -> Diffs:
    """A recording of a change that costs `here_ms` beside other work and `there_ms` alone."""
    pairs = (
        paired("off", "on", cost_ms=here_ms),
        paired("off", "off_alone", cost_ms=-5),
        paired("off_alone", "on_alone", cost_ms=there_ms, a_ms=15),
        paired("off", "off", cost_ms=0),
    )
    run = {arm.name: Run(arm.name, (), MANIFEST, arm.name, pairs) for arm in ARMS}
    compared = (("off", "on"), ("off", "off_alone"), ("off_alone", "on_alone"))
    diffs = tuple(diff_runs(run[a], run[b]) for a, b in compared)
    return Diffs("off", diffs, (), pairs, tuple(arm_interactions(ARMS, diffs)))


def paired(a: str, b: str, *, cost_ms: float, a_ms: float = 20) -> Pairs:
    """32 pairs with a little noise."""
    return replace(recording(round(a_ms * MS), round((a_ms + cost_ms) * MS), num=32, jitter_ns=10_000), a=a, b=b)
