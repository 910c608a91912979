"""When a watched job became slower, on which ranks, and of what kind."""

from __future__ import annotations

import numpy as np
import pytest
from made_steps import MIB, MS, NUM, ONSET, made_ranks, made_rows, onsets_of, since
from numpy.typing import ArrayLike

from traceq.long_runs.onsets import (
    COLLECTOR,
    GROWING_MEMORY,
    GROWING_STEPS,
    LESS_CPU,
    SLOW_JOB,
    SLOW_LOADER,
    SLOW_RANK,
    THROTTLED,
    OnsetDetector,
)
from traceq.long_runs.sentences import onset_text
from traceq.long_runs.step_store import CAPTURED, StepBlocks

LATER = since(ONSET, 0.9 * MS)
COMPUTES = {"forward": LATER, "cpu": LATER}
WAITS = {"forward": LATER, "queued": LATER}


@pytest.mark.parametrize(
    ("ranks", "kind", "of"),
    [
        ([{}, COMPUTES], SLOW_RANK, (1,)),
        ([{}, {}, {}, {"forward": LATER}], SLOW_RANK, (3,)),
        ([COMPUTES, COMPUTES], SLOW_JOB, (0, 1)),
        ([{"backward": LATER}, {"backward": LATER}], SLOW_JOB, (0, 1)),
        ([{}, {"loader": LATER}], SLOW_LOADER, (1,)),
        ([{"gc": LATER, "cpu": LATER}, {}], COLLECTOR, (0,)),
        ([{}, WAITS], LESS_CPU, (1,)),
    ],
)
def test_where_time_went_says_the_kind_and_the_ranks(
    ranks: list[dict[str, ArrayLike]], kind: str, of: tuple[int, ...]
) -> None:
    (onset,) = onsets_of(made_ranks(*ranks))
    assert (onset.kind, onset.ranks) == (kind, of)
    assert ONSET < onset.seen_at <= ONSET + 200
    assert onset.low < onset.growth < onset.high
    assert onset.growth == pytest.approx(0.1, rel=0.1)
    assert abs(onset.step - ONSET) <= 32


LOWER, SAYS_SO = {"clock": -since(ONSET, 180e6)}, {"throttled": since(ONSET, 1)}


@pytest.mark.parametrize(
    ("ranks", "kind", "of"),
    [
        ([{}, {**COMPUTES, **LOWER, **SAYS_SO}], THROTTLED, (1,)),
        ([COMPUTES, {**COMPUTES, **LOWER, **SAYS_SO}], THROTTLED, (1,)),
        ([{**COMPUTES, **SAYS_SO}, {**COMPUTES, **LOWER}], SLOW_JOB, (0, 1)),
        ([{"loader": LATER, **LOWER, **SAYS_SO}, {}], SLOW_LOADER, (0,)),
        ([{**COMPUTES, **SAYS_SO, "clock": -since(ONSET, 60e6)}, {}], SLOW_RANK, (0,)),
    ],
    ids=["a rank", "all wait", "one sign each", "the loader", "too little"],
)
def test_a_throttled_device_is_the_cause_where_it_says_so_and_its_clock_fell_by_enough(
    ranks: list[dict[str, ArrayLike]], kind: str, of: tuple[int, ...]
) -> None:
    (onset,) = onsets_of(made_ranks(*ranks))
    assert (onset.kind, onset.ranks) == (kind, of)


def test_a_throttled_device_in_words() -> None:
    (onset,) = onsets_of(made_ranks({}, {**COMPUTES, **LOWER, **SAYS_SO}))
    assert onset_text(onset).startswith(
        "throttled device: the device of rank 1 is throttled, for power or temperature, since step 800: "
        "its clock 1,980 MHz → 1,800 MHz, +9.7 % of a step (95 % CI +9."
    )


@pytest.mark.slow
def test_steps_that_grow_are_no_jump() -> None:
    num = 16_000
    rows = made_rows(num, forward=3 * MS * np.arange(num) / num)
    kinds = {onset.kind for onset in onsets_of([rows])}
    assert kinds == {GROWING_STEPS}


def test_a_leak_is_said_once_until_memory_has_doubled() -> None:
    leak = 0.3 * MIB * np.clip(np.arange(NUM) - ONSET, 0, None)
    (onset,) = onsets_of([made_rows(), made_rows(memory=leak)])
    assert (onset.kind, onset.ranks, onset.measure) == (GROWING_MEMORY, (1,), "memory")
    assert ONSET < onset.seen_at <= ONSET + 240
    assert onset.after - onset.before == pytest.approx(0.3 * MIB * 192, rel=0.2)
    faster = 3 * leak
    assert [each.kind for each in onsets_of([made_rows(memory=faster)])] == [GROWING_MEMORY] * 2


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"memory": since(ONSET, 100 * MIB)},
        {"forward": -LATER},
        {"forward": 30 * MS * (np.arange(NUM) % 100 == 7)},
        {"forward": 3 * MS * (np.arange(NUM) // 40 == 20)},
        {"forward": 0.05 * MS * np.arange(NUM) / NUM},
    ],
    ids=["nothing", "an allocation", "faster", "pauses", "a burst of 40 steps", "drift"],
)
def test_what_is_no_onset_is_not_said(columns: dict[str, ArrayLike]) -> None:
    assert onsets_of(made_ranks({}, columns)) == []


@pytest.mark.parametrize("more", [{}, COMPUTES])
def test_a_rank_of_which_nothing_comes_is_as_usual(more: dict[str, ArrayLike]) -> None:
    blocks = StepBlocks(3).add(made_ranks(more, {}, {"loader": 2 * MS, "forward": -2 * MS}))
    detector, onsets = OnsetDetector(), []
    for number, block in enumerate(blocks):
        if 45 <= number < 75:
            block.values[2] = np.nan
        onsets += filter(None, [detector.add(block)])
    assert [(onset.kind, onset.ranks) for onset in onsets] == ([(SLOW_RANK, (0,))] if more else [])


def test_irregular_and_traced_steps_count_for_nothing() -> None:
    is_long = np.arange(NUM) % 20 < 5
    (rows,) = made_ranks({"forward": 50 * MS * is_long * (np.arange(NUM) >= ONSET)})
    rows["flags"][is_long & (np.arange(NUM) >= ONSET)] = 0
    rows["flags"][is_long & (np.arange(NUM) >= 1200)] = CAPTURED
    assert onsets_of([rows]) == []


def test_an_onset_in_words() -> None:
    (onset,) = onsets_of(made_ranks({}, COMPUTES))
    assert onset_text(onset).startswith(
        "slow rank: rank 1 became slower, most in forward, and the others wait in backward, since step 800: "
        "CPU time 6.00 ms → 6.91 ms, +9.7 % of a step (95 % CI +9."
    )
