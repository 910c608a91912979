"""Which steps of a job are usual, while it goes over to others."""

from __future__ import annotations

import re
from itertools import count, pairwise
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from traceq.recorder.jobs.step_pattern import StepPattern, short_text
from traceq.recorder.jobs.step_tracker import UsualSteps

PLAIN, WITH_TEACHER, WITH_EVALUATION = "L F B O0", "L F f B O0", "L F B O0 L f L f"
STEPS_OF_A_PAIR = 16
OTHERS_NOW = "the usual steps of the job are others now"


def in_words(events: str) -> str:
    return short_text(events.split())


def were_usual(*steps: str, pattern: str = PLAIN, step_s: float = 0.0) -> tuple[list[bool], list[str]]:
    """Return for each step, which takes so long, whether it was usual, and what was said."""
    changes: list[str] = []
    now_s = count(step_s, step_s)
    time_s = [0.0]
    usual = UsualSteps(
        StepPattern(tuple(pattern.split()), "O0", pattern[0], 6, 6), changes.append, 0, lambda: time_s[0]
    )
    seen = []
    for step, time_s[0] in zip(steps, now_s, strict=False):
        seen.append(usual.add("", step.split()))
    return seen, changes


def test_after_many_other_steps_those_of_most_are_usual() -> None:
    usual, changes = were_usual(*[PLAIN] * 40, *[WITH_TEACHER] * 40)
    assert all(usual[:40])
    assert usual[40:] == [False] * 8 + [True] * 32
    assert changes == [f"{OTHERS_NOW}: {in_words(WITH_TEACHER)} instead of {in_words(PLAIN)}"]


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
    assert changes == [f"{OTHERS_NOW}: forward*, backward, optimizer, forward* instead of {in_words('F B O0 f')}"]


def test_steps_of_which_no_kind_is_that_of_most_stay_unusual() -> None:
    usual, changes = were_usual(
        *[PLAIN] * 10, *(f"L F B O{number % 7}{' S' * (number % 3)}" for number in range(1, 90))
    )
    assert sum(usual[10:]) <= 5
    assert changes == []


def batches(*numbers: int) -> list[str]:
    """Return a step of so many batches each."""
    return ["L F B " * num + "O0" for num in numbers]


RAMP = [1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 9, 11, 13, 15]


def test_steps_of_more_and_more_batches_are_one_kind() -> None:
    """As those of a warm-up that raises its accumulation."""
    usual, changes = were_usual(*batches(*[1] * 20, *RAMP, *[16] * 40))
    assert usual.index(False) == 23
    assert all(usual[31:])
    assert changes == [f"{OTHERS_NOW}: (batch, forward, backward)*, optimizer instead of {in_words(PLAIN)}"]


def test_a_new_number_of_batches_that_stays_is_that_of_usual_steps() -> None:
    usual, changes = were_usual(*batches(*[1] * 20, *[4] * 40))
    assert all(usual[28:])
    assert changes == [f"{OTHERS_NOW}: (batch, forward, backward)x4, optimizer instead of {in_words(PLAIN)}"]


def test_the_mean_number_of_batches_is_that_of_usual_steps() -> None:
    tracker = UsualSteps(StepPattern(tuple(PLAIN.split()), "O0", "L", 6, 6, num_batches=1), lambda _: None)
    assert tracker.num_batches("") == 1
    for step in batches(*[1] * 20, *[2] * 8):
        tracker.add("", step.split())
    tracker.add("", ["L", "F", "B", "L", "F", "B", "O0"])
    assert tracker.num_batches("") == 2


def test_where_arms_take_turns_steps_of_other_numbers_of_batches_never_count() -> None:
    usual, _ = in_turns(batches(*[1] * 20, *range(2, 60)), 2)
    assert not any(usual[20:])


def test_long_steps_are_learned_from_sooner_and_what_is_seen_is_said() -> None:
    """Three steps of five seconds are enough; before, nothing has counted for ten seconds."""
    usual, changes = were_usual(*[PLAIN] * 10, *batches(*[16] * 10), step_s=5.0)
    assert usual[10:] == [False] * 3 + [True] * 7
    first, then = changes
    assert re.fullmatch(rf"no step .* 10 s: .* \(batch, forward, backward\)x16, optimizer .* {in_words(PLAIN)}", first)
    assert then == f"{OTHERS_NOW}: (batch, forward, backward)x16, optimizer instead of {in_words(PLAIN)}"


def in_turns(steps: list[str], num: int) -> tuple[list[bool], list[str]]:
    """Return the same where two arms take turns, of `num` steps each."""
    changes: list[str] = []
    usual = UsualSteps(StepPattern(tuple(PLAIN.split()), "O0", "L", 6, 6), changes.append, STEPS_OF_A_PAIR)
    return [usual.add("ab"[number // num % 2], step.split()) for number, step in enumerate(steps)], changes


def test_all_arms_go_over_to_other_steps_together() -> None:
    usual, changes = in_turns([PLAIN] * 40 + [WITH_TEACHER] * 60, 2)
    assert usual == [True] * 40 + [False] * 17 + [True] * 43
    assert changes == [f"{OTHERS_NOW}: {in_words(WITH_TEACHER)} instead of {in_words(PLAIN)}"]


def test_an_arm_that_had_no_step_meanwhile_learns_from_its_next_ones() -> None:
    changes: list[str] = []
    usual = UsualSteps(StepPattern(tuple(PLAIN.split()), "O0", "L", 6, 6), changes.append, STEPS_OF_A_PAIR)
    assert all(usual.add(arm, PLAIN.split()) for arm in "abc" for _ in range(10))
    for number in range(STEPS_OF_A_PAIR + 1):
        assert not usual.add("ab"[number % 2], WITH_TEACHER.split())
    assert usual.add("a", WITH_TEACHER.split())
    assert all(usual.add("c", WITH_TEACHER.split()) for _ in range(20))


KINDS = st.sampled_from([PLAIN, WITH_TEACHER, WITH_EVALUATION])


@given(st.lists(st.tuples(KINDS, st.integers(5, 80)), min_size=2, max_size=8), st.sampled_from([2, 4, 8]))
@example([(WITH_TEACHER, 7), (WITH_EVALUATION, 18), (WITH_TEACHER, 8)], 8)  # first as one arm runs, then the other
def test_steps_before_and_behind_a_change_are_further_apart_than_those_of_a_pair(
    runs: list[tuple[str, int]], num: int
) -> None:
    steps = [PLAIN] * 32 + [step for kind, num_steps in runs for step in [kind] * num_steps]
    usual, _ = in_turns(steps, num)
    counted = [number for number, is_usual in enumerate(usual) if is_usual]
    assert all(b - a > STEPS_OF_A_PAIR for a, b in pairwise(counted) if steps[a] != steps[b])
