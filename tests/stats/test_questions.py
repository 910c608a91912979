"""Five questions of one run claim together no more than one would alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pairs import MS, pairs_of, recording

from traceq.stats import Comparison, answer_together, compare_pairs, interaction
from traceq.stats.comparison import adjusted
from traceq.stats.hodges_lehmann import chance_to_exceed, level_of
from traceq.stats.limits import ALPHA

chances = st.lists(st.floats(0, 1).map(lambda p: round(p**3, 4)), min_size=1, max_size=6)


def claimed_step_by_step(p: Sequence[float]) -> list[bool]:
    """The procedure as it is written: half of alpha for the first, Holm for the rest; what is claimed passes on."""

    def holm(values: Sequence[float], level: float) -> list[bool]:
        claimed, left = [False] * len(values), len(values)
        for index in sorted(range(len(values)), key=values.__getitem__):
            if values[index] * left > level:
                break
            claimed[index], left = True, left - 1
        return claimed

    main, others = p[0], p[1:]
    of_others = holm(others, ALPHA if main <= ALPHA / 2 else ALPHA / 2)
    return [main <= (ALPHA if others and all(of_others) else ALPHA / 2), *of_others]


@given(chances)
def test_adjusted_chances_claim_what_the_procedure_does(p: list[float]) -> None:
    assert [chance <= ALPHA for chance in adjusted(p)] == claimed_step_by_step(p)


@given(chances)
def test_adjusted_chances_are_those_of_the_closed_test(p: list[float]) -> None:
    """Every set of questions without an effect has the whole alpha, half of it for the main question."""

    def of_set(members: Sequence[int]) -> float:
        others = [index for index in members if index]
        weight = 0.5 if 0 in members else 1.0
        chances = [p[index] / (weight / len(others)) for index in others]
        chances += [p[0] / (0.5 if others or len(p) == 1 else 1.0)] * (0 in members)
        return min(1.0, *chances)

    sets = [members for size in range(1, len(p) + 1) for members in combinations(range(len(p)), size)]
    closed = [max(of_set(members) for members in sets if index in members) for index in range(len(p))]
    assert np.minimum(adjusted(p), 1) == pytest.approx(closed)


def null_run(rng: np.random.Generator, num_pairs: int = 32) -> list[Comparison]:
    """Five comparisons of equal arms, 10 % of noise."""
    b_second = np.arange(num_pairs) % 2 == 0
    halves = rng.normal(100 * MS, 10 * MS, (5, 2, num_pairs)).astype(np.int64)
    return [compare_pairs(pairs_of(first, second, b_second)) for first, second in halves]


@pytest.mark.slow
def test_five_questions_without_an_effect_are_rarely_claimed() -> None:
    """Each alone: in 1 of 7 runs one is material."""
    rng = np.random.default_rng(3)
    runs = [null_run(rng) for _ in range(400)]
    alone = np.mean([any(answer.verdict.name == "material" for answer in run) for run in runs])
    together = np.mean([any(answer.verdict.name == "material" for answer in answer_together(run)) for run in runs])
    assert alone > 0.10
    assert together <= 0.05


@pytest.mark.slow
def test_one_question_without_an_effect_is_claimed_in_one_of_forty_runs() -> None:
    """Far above the threshold, where every interval that misses 0 nearly misses the threshold, too."""
    rng = np.random.default_rng(5)
    alone = [answer for _ in range(800) for answer in null_run(rng)]
    claimed = [answer_together([answer])[0].verdict.is_difference for answer in alone]
    assert np.mean([answer.verdict.is_difference for answer in alone]) > 0.04
    assert 0.015 < np.mean(claimed) <= 0.025


def test_the_only_question_of_a_run_needs_what_the_main_one_of_several_does() -> None:
    material = compare_pairs(recording(100 * MS, 102 * MS))
    (claimed,) = answer_together([replace(material, p_material=0.02)])
    assert claimed.verdict == material.verdict
    (weakened,) = answer_together([replace(material, p_material=0.03, p_different=0.02)])
    assert weakened.verdict.name == "detectable"
    assert weakened.verdict.reason.startswith(material.verdict.reason)
    assert re.findall(r"[\d.]+ %", weakened.verdict.reason)[-2:] == ["3.0 %", "2.5 %"]
    (lost,) = answer_together([replace(material, p_material=0.05, p_different=0.04)])
    assert lost.verdict.name == "inconclusive"
    assert re.findall(r"[\d.]+ %", lost.verdict.reason)[-2:] == ["4.0 %", "2.5 %"]


def test_a_claim_that_chance_makes_too_often_is_weakened_and_says_so() -> None:
    (alone,) = answer_together([compare_pairs(recording(100 * MS, 102 * MS))])
    assert (alone.verdict.name, alone.num_questions) == ("material", 1)
    nothing = compare_pairs(recording(100 * MS, 100 * MS))
    weak = replace(alone, p_material=0.03, p_different=0.004)
    (main, other, _) = answer_together([weak, weak, nothing])
    assert (main.verdict.name, main.num_questions) == ("detectable", 3)
    assert main.verdict.reason.endswith("up to 6.0 % of runs")
    assert other.verdict.name == "detectable"
    (strong, second, _) = answer_together([alone, weak, nothing])
    assert (strong.verdict.name, second.verdict.name) == ("material", "detectable")
    (lost, *_) = answer_together([replace(weak, p_different=0.04), weak, nothing])
    assert lost.verdict.name == "inconclusive"
    assert lost.ci95_ns == alone.ci95_ns


def test_what_the_main_question_claims_is_passed_on() -> None:
    material = compare_pairs(recording(100 * MS, 102 * MS))
    weak = replace(material, p_material=0.04)
    assert [answer.verdict.name for answer in answer_together([material, weak])] == ["material", "material"]
    assert [answer.verdict.name for answer in answer_together([weak, weak])] == ["detectable", "detectable"]


@pytest.mark.parametrize(("questions", "z"), [(1, 2.66), (2, 2.906), (3, 3.04), (4, 3.13), (5, 3.20), (7, 3.303)])
def test_eleven_looks_at_several_questions_need_a_larger_distance(questions: int, z: float) -> None:
    assert chance_to_exceed(z, 11) == pytest.approx(0.05 / questions, rel=0.03)


def test_an_interaction_is_claimed_only_beside_a_cost() -> None:
    here = compare_pairs(recording(100 * MS, 101 * MS))
    there = compare_pairs(recording(100 * MS, 104 * MS))
    assert interaction(here, there).verdict.name == "material"
    doubtful = [replace(each, verdict=replace(each.verdict, name="inconclusive")) for each in (here, there)]
    result = interaction(doubtful[0], doubtful[1]).verdict
    assert result.name == "inconclusive"
    assert "neither of the two costs" in result.reason


def test_only_a_control_far_beyond_chance_costs_the_verdict() -> None:
    other, rng = recording(100 * MS, 103 * MS, num=64), np.random.default_rng(1)
    broken = compare_pairs(other, control=recording(100 * MS, 102 * MS, num=64))
    assert broken.verdict.name == "inconclusive"
    assert broken.verdict.reason.startswith("the A/A control differs from itself, ")
    noisy = (rng.normal(100 * MS, MS, (200, 2, 64))).astype(np.int64)
    controls = [pairs_of(first, second, np.arange(64) % 2 == 0, b="off") for first, second in noisy]
    by_chance = [compare_pairs(other, control=control) for control in controls]
    assert {answer.verdict.name for answer in by_chance} == {"material"}


def test_the_level_of_one_look_is_the_usual_one() -> None:
    assert (level_of(1).z95, level_of(1).z90) == (pytest.approx(1.959964), pytest.approx(1.644854))
