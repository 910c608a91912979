"""Which steps of a job are usual, while it goes over to others."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from traceq.recorder.jobs.step_pattern import StepPattern
from traceq.recorder.jobs.usual_steps import UsualSteps

PLAIN, WITH_TEACHER, WITH_EVALUATION = "L F B O0", "L F f B O0", "L F B O0 L f L f"
STEPS_OF_A_PAIR = 16


def were_usual(*steps: str, pattern: str = PLAIN) -> tuple[list[bool], list[str]]:
    """Return for each step whether it was usual, and what was said."""
    changes: list[str] = []
    usual = UsualSteps(StepPattern(tuple(pattern.split()), "O0", pattern[0], 6, 6), changes.append)
    return [usual.add(step.split()) for step in steps], changes


def test_after_many_other_steps_those_of_most_are_usual() -> None:
    usual, changes = were_usual(*[PLAIN] * 40, *[WITH_TEACHER] * 40)
    assert all(usual[:40])
    assert usual[40:] == [False] * 24 + [True] * 16
    assert changes == [f"{WITH_TEACHER} instead of {PLAIN}"]


def test_steps_that_evaluate_now_and_then_change_nothing() -> None:
    usual, changes = were_usual(*[PLAIN, WITH_EVALUATION, WITH_EVALUATION] * 40)
    assert usual == [True, False, False] * 40
    assert changes == []


def test_where_numbers_of_forwards_are_of_chance_those_in_a_row_count_as_one() -> None:
    """An agent acts at random at first, and asks its network more and more often."""
    rng = Random(1)
    acts = [" f" * rng.randrange(1, 11) for _ in range(600)]
    usual, changes = were_usual(*["F B O0 f"] * 20, *[f"F B O0{act}" for act in acts], pattern="F B O0 f")
    assert all(usual[-100:])
    assert changes == ["F* B O0 F* instead of F B O0 f"]


def test_steps_of_which_no_kind_is_that_of_most_stay_unusual() -> None:
    usual, changes = were_usual(
        *[PLAIN] * 10, *(f"L F B O{number % 7}{' S' * (number % 3)}" for number in range(1, 90))
    )
    assert sum(usual[10:]) <= 5
    assert changes == []


KINDS = st.sampled_from([PLAIN, WITH_TEACHER, WITH_EVALUATION])


@given(st.lists(st.tuples(KINDS, st.integers(1, 40)), min_size=2, max_size=8))
def test_steps_before_and_behind_a_change_are_further_apart_than_those_of_a_pair(runs: list[tuple[str, int]]) -> None:
    steps = [PLAIN] * 8 + [step for kind, num in runs for step in [kind] * num]
    usual, _ = were_usual(*steps)
    counted = [number for number, is_usual in enumerate(usual) if is_usual]
    assert all(b - a > STEPS_OF_A_PAIR for a, b in pairwise(counted) if steps[a] != steps[b])
