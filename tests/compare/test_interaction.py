"""What a change costs in one place, against what it costs in another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_interaction import diffs_of
from made_pairs import recording, simulate

from traceq.compare.tables import matrix
from traceq.errors import UsageFault
from traceq.model import Arm
from traceq.recorder.spec.recipe import Recipe, check_names
from traceq.stats import Interaction, compare_pairs, interaction

MS = 1_000_000


def between(here: tuple[int, tuple[int, int]], there: tuple[int, tuple[int, int]]) -> Interaction:
    known = compare_pairs(recording(20 * MS, 20 * MS, num=32, jitter_ns=10_000))
    one, other = (replace(known, delta_ns=at, ci95_ns=ends, ci90_ns=ends) for at, ends in (here, there))
    return interaction(one, other)


def test_the_ends_of_the_difference_worked_out_by_hand() -> None:
    found = between((100, (70, 160)), (500, (420, 540)))
    assert found.delta_ns == 400
    assert found.ci95_ns == (400 - 100, 400 + 50)  # hypot(500 - 420, 160 - 100), hypot(540 - 500, 100 - 70)


def test_turned_around_the_difference_has_the_other_sign() -> None:
    there, back = between((100, (70, 160)), (500, (420, 540))), between((500, (420, 540)), (100, (70, 160)))
    assert there.ci95_ns is not None
    assert (back.delta_ns, back.ci95_ns) == (-there.delta_ns, (-there.ci95_ns[1], -there.ci95_ns[0]))


@pytest.mark.parametrize(
    ("here_ms", "there_ms", "name", "words"),
    [
        (0, 2, "material", "off_alone lacks what hides so much of it"),
        (2, 0.5, "material", "off_alone lacks what adds so much of it"),
        (1, 1, "in_the_noise", "what stands around it does not matter to it"),
    ],
)
def test_what_neighbours_do_to_a_cost_is_said(here_ms: float, there_ms: float, name: str, words: str) -> None:
    (found,) = diffs_of(here_ms=here_ms, there_ms=there_ms).joint
    assert (found.repeats, found.arm, found.interaction.verdict.name) == ("on", "on_alone", name)
    assert found.interaction.delta_ns == pytest.approx((there_ms - here_ms) * MS, abs=20_000)
    assert found.words.endswith(f"{words}.")


def test_both_costs_stand_in_the_sentence_and_in_the_matrix() -> None:
    found = diffs_of(here_ms=1, there_ms=3)
    assert (
        "on costs 1.00 ms a step against off, on_alone costs 3.00 ms a step against off_alone: " in found.joint[0].words
    )
    table = matrix(found)
    assert [row[:2] for row in table.rows] == [("on", "off"), ("off_alone", "off"), ("on_alone", "off_alone")]
    assert table.title == "Unprofiled steps"


def test_only_the_arm_that_ran_against_itself_is_said_to() -> None:
    words = [diff.words[1] for diff in diffs_of(here_ms=1, there_ms=3).diffs]
    assert all("off against itself shows up to" in line for line in words)


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
