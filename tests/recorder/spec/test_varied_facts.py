"""What a recipe notes of its arm is, with `--vary`, a fact of each arm that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from traceq.model import Arm, Fact
from traceq.recorder import Context, Recipe, Step
from traceq.recorder.rank_recording import VariedFacts
from traceq.recorder.spec.plan import PlannedArm, planned_arms


@dataclass(frozen=True)
class Parameters:
    width: int = 1


def build(context: Context, parameters: Parameters) -> Step:
    return lambda arm: None


RECIPE = Recipe(
    question="How wide?",
    phases=(),
    parameters=Parameters(),
    build=build,
    arms=(Arm("off", "", baseline=True), Arm("on", "")),
    facts=(Fact("loss", "loss"), Fact("kernel", "kernel"), Fact("names", "names", of_run=True)),
    varied="on",
)
NARROW, WIDE = planned_arms(RECIPE, Parameters(), ["width=1,2"])


def noted(*builds: tuple[PlannedArm, dict[str, Any]], is_isolated: bool = False) -> dict[str, Any]:
    of_run: dict[str, Any] = {}
    for planned, facts in builds:
        VariedFacts(of_run, RECIPE, [planned], is_isolated=is_isolated).update(facts)
    return of_run


def test_a_fact_of_the_recipes_arm_is_one_of_the_arm_that_runs_it() -> None:
    narrow, wide = ({"loss.off": loss, "loss.on": loss + 1, "names": "x"} for loss in (10, 20))
    assert noted((NARROW, narrow), (WIDE, wide)) == {"loss.width=1": 11, "loss.width=2": 21, "names": "x"}


def test_a_fact_of_all_arms_differs_between_builds() -> None:
    assert noted((NARROW, {"kernel": "flash"}), (WIDE, {"kernel": "math"})) == {
        "kernel.width=1": "flash",
        "kernel.width=2": "math",
    }


def test_an_arm_in_its_own_process_keeps_plain_keys() -> None:
    assert noted((WIDE, {"loss.on": 3, "loss.off": 2, "kernel": "math"}), is_isolated=True) == {
        "loss": 3,
        "kernel": "math",
    }


def test_what_is_not_declared_stays_as_it_is_and_the_build_reads_what_it_wrote() -> None:
    of_run: dict[str, Any] = {}
    facts = VariedFacts(of_run, RECIPE, [NARROW, WIDE])
    facts["wrapper"], facts["collectives.on"], facts["loss"] = "DDP", "all_reduce 2", 1.5
    assert of_run == {"wrapper": "DDP", "collectives.on": "all_reduce 2", "loss.width=1": 1.5, "loss.width=2": 1.5}
    assert facts["loss"] == 1.5
