"""Cost of a change in one context against its cost in another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_interaction import diffs_of
from made_pairs import recording, simulate
from statements import only

from traceq.compare.tables import matrix
from traceq.errors import UsageFault
from traceq.model import Arm
from traceq.recorder.spec.recipe import Recipe, check_names
from traceq.stats import Interaction, compare_pairs, interaction

MS = 1_000_000


def between(here: tuple[int, tuple[int, int]], there: tuple[int, tuple[int, int]]) -> Interaction:
    comparison = compare_pairs(recording(20 * MS, 20 * MS, num=32, jitter_ns=10_000))
    first, second = (replace(comparison, delta_ns=ns, ci95_ns=ends, ci90_ns=ends) for ns, ends in (here, there))
    return interaction(first, second)


def test_the_ends_of_the_difference_worked_out_by_hand() -> None:
    result = between((100, (70, 160)), (500, (420, 540)))
    assert result.delta_ns == 400
    assert result.ci95_ns == (400 - 100, 400 + 50)  # hypot(500 - 420, 160 - 100), hypot(540 - 500, 100 - 70)


def test_turned_around_the_difference_has_the_other_sign() -> None:
    there, back = between((100, (70, 160)), (500, (420, 540))), between((500, (420, 540)), (100, (70, 160)))
    assert there.ci95_ns is not None
    assert (back.delta_ns, back.ci95_ns) == (-there.delta_ns, (-there.ci95_ns[1], -there.ci95_ns[0]))


@pytest.mark.parametrize(
    ("here_ms", "there_ms", "name", "meaning"),
    [(0, 2, "material", "hides"), (2, 0.5, "material", "adds"), (1, 1, "in_the_noise", "same_contexts")],
)
def test_an_interaction_says_whether_other_work_hides_the_cost(
    here_ms: float, there_ms: float, name: str, meaning: str
) -> None:
    (result,) = diffs_of(here_ms=here_ms, there_ms=there_ms).interactions
    assert (result.repeats, result.arm, result.interaction.verdict.name) == ("on", "on_alone", name)
    assert result.interaction.delta_ns == pytest.approx((there_ms - here_ms) * MS, abs=20_000)
    assert {"hides", "adds", "same_contexts"} & result.statement.measures.keys() == {meaning}


def test_both_costs_are_in_the_interaction_and_in_the_matrix() -> None:
    result = diffs_of(here_ms=1, there_ms=3)
    (between,) = result.interactions
    measures = between.statement.measures
    assert [(measures[key], measures[f"{key}_from"]) for key in ("here", "there")] == [
        ("on", "off"),
        ("on_alone", "off_alone"),
    ]
    keys = ("here_delta_ns", "there_delta_ns", "delta_ns")
    assert [measures[key] for key in keys] == pytest.approx([1 * MS, 3 * MS, 2 * MS], abs=30_000)
    table = matrix(result)
    arms = [("off", None), ("on", "off"), ("off_alone", "off"), ("on_alone", "off_alone")]
    assert [row[:2] for row in table.rows] == arms
    assert [row[2] for row in table.rows] == [diff.steps.a_ns for diff in result.diffs[:1] if diff.steps] + [
        diff.steps.b_ns for diff in result.diffs if diff.steps
    ]
    assert table.title == "Unprofiled steps"


def test_the_noise_floor_names_the_arm_of_the_control() -> None:
    for diff in diffs_of(here_ms=1, there_ms=3).diffs:
        assert diff.comparison is not None
        why = only("why", diff)
        assert (why["control"], why["noise_floor_ns"]) == ("off", diff.comparison.noise_floor_ns)


@pytest.mark.slow
def test_the_interval_covers_a_known_difference_of_costs() -> None:
    rng, covered = np.random.default_rng(3), []
    for _ in range(100):
        here, there = (compare_pairs(simulate(rng, delta_ns=cost)) for cost in (100_000, 900_000))
        ends = interaction(here, there).ci95_ns
        covered.append(ends is not None and ends[0] <= 800_000 <= ends[1])
    assert sum(covered) >= 88  # of 100 at 95 %: fewer in 1 of 1,000


@pytest.mark.parametrize("wrong", [{"against": "nothing"}, {"against": "traced"}, {"repeats": "on"}])
def test_an_arm_that_names_no_other_timed_arm_is_refused(wrong: dict[str, Any]) -> None:
    arms = (Arm("off", "", baseline=True), Arm("traced", "", timed=False), Arm("on", "", **wrong))
    with pytest.raises(UsageFault, match="no other timed arm"):
        check_names(Recipe("?", (), None, lambda context, parameters: print, arms), "recipe.py")
