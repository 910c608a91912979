"""Diffs of a cost measured in two surroundings."""

from __future__ import annotations

from dataclasses import replace

from made_pairs import MS, recording

from traceq.compare.diff import diff_runs
from traceq.compare.interaction import joint
from traceq.compare.result import Diffs
from traceq.model import Arm, Manifest, Pairs, Run

__all__ = ["ARMS", "MANIFEST", "diffs_of", "pairs_of"]


ARMS = (
    Arm("off", "", baseline=True),
    Arm("on", ""),
    Arm("off_alone", ""),
    Arm("on_alone", "", against="off_alone", repeats="on"),
)


MANIFEST = Manifest(1, "r", "r", "?", {}, ARMS, (), 1, 1, "complete")


def pairs_of(a: str, b: str, *, cost_ms: float, a_ms: float = 20) -> Pairs:
    found = recording(round(a_ms * MS), round((a_ms + cost_ms) * MS), num=32, jitter_ns=10_000)
    return replace(found, a=a, b=b)


def diffs_of(*, here_ms: float, there_ms: float) -> Diffs:
    """A recording of a check that costs so much beside its neighbours, and so much alone."""
    pairs = (
        pairs_of("off", "on", cost_ms=here_ms),
        pairs_of("off", "off_alone", cost_ms=-5),
        pairs_of("off_alone", "on_alone", cost_ms=there_ms, a_ms=15),
        pairs_of("off", "off", cost_ms=0),
    )
    run = {arm.name: Run(arm.name, (), MANIFEST, arm.name, pairs) for arm in ARMS}
    compared = (("off", "on"), ("off", "off_alone"), ("off_alone", "on_alone"))
    diffs = tuple(diff_runs(run[a], run[b]) for a, b in compared)
    return Diffs("off", diffs, (), pairs, tuple(joint(ARMS, diffs)))
