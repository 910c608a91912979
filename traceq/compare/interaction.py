"""The same change in two places: whether what stands around it hides what it costs, or adds to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceq.compare.result import Diff, Joint
from traceq.compare.sentences import joint_words
from traceq.model import Arm
from traceq.stats import interaction

__all__ = ["joint"]


def joint(arms: Sequence[Arm], diffs: Sequence[Diff]) -> Iterator[Joint]:
    """One for each arm that repeats the change of another, in the recipe's order, where pairs tell of both."""
    by_arm = {found.b_name: found for found in diffs}
    for arm in arms:
        here, there = by_arm.get(arm.repeats), by_arm.get(arm.name)
        if here is None or there is None:
            continue
        if here.comparison and there.comparison and here.comparison.num_pairs and there.comparison.num_pairs:
            found = interaction(here.comparison, there.comparison)
            yield Joint(here.b_name, there.b_name, found, joint_words(here, there, found))
