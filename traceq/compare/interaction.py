"""Interaction: whether a change costs the same in two contexts, or other work hides or adds to its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceq.compare.result import ArmInteraction, Diff
from traceq.compare.verdict import interaction_of
from traceq.model import Arm
from traceq.stats import interaction

__all__ = ["arm_interactions"]


def arm_interactions(arms: Sequence[Arm], diffs: Sequence[Diff]) -> Iterator[ArmInteraction]:
    """Yield one interaction per arm that repeats another's change, in the recipe's order, where both have pairs."""
    by_arm = {diff.b_name: diff for diff in diffs}
    for arm in arms:
        here, there = by_arm.get(arm.repeats), by_arm.get(arm.name)
        if here is None or there is None:
            continue
        if here.comparison and there.comparison and here.comparison.num_pairs and there.comparison.num_pairs:
            result = interaction(here.comparison, there.comparison)
            yield ArmInteraction(here.b_name, there.b_name, result, interaction_of(here, there, result))
