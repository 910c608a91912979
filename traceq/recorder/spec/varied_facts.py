"""Facts of arms that `--vary` makes: a recipe names its own arms, the run those of the varied values."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, MutableMapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceq.recorder.spec.plan import PlannedArm
    from traceq.recorder.spec.recipe import Recipe

__all__ = ["VariedFacts"]

FactValue = str | int | float


class VariedFacts(UserDict[str, FactValue]):
    """Facts of one build, each also written to those of the run as a fact of the arms that the build is for.

    What the recipe notes as `key`, or as `key.<the arm that runs>`, is `key.<arm of the run>` there if the recipe
    declares the key as one of arms; `key` if each arm has a process of its own. What it notes of its other arms, which
    are not in the run, is left out.
    """

    def __init__(
        self,
        of_run: MutableMapping[str, FactValue],
        recipe: Recipe[object],
        arms: Sequence[PlannedArm],
        *,
        is_isolated: bool = False,
    ) -> None:
        """`of_run`: the facts to write to. `arms`: those of the run that share the build."""
        super().__init__()
        self._of_run, self._arms, self._is_isolated = of_run, arms, is_isolated
        self._declared: Collection[str] = {fact.key for fact in recipe.facts if not fact.of_run}
        self._runs: Collection[str] = {arm.name for arm in recipe.arms}

    def __setitem__(self, key: str, value: FactValue) -> None:
        """Note a fact of the build."""
        super().__setitem__(key, value)
        declared, _, runs = key.rpartition(".")
        if key in self._declared:
            declared, runs = key, ""
        elif declared not in self._declared or runs not in self._runs:
            self._of_run[key] = value
            return
        for planned in self._arms:
            if runs in ("", planned.runs):
                self._of_run[declared if self._is_isolated else f"{declared}.{planned.arm.name}"] = value
