"""Rows of ranks, joined to blocks by their number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_steps import MS, made_ranks, made_rows

from traceq.long_runs.step_store import StepBlocks, measure


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_blocks_do_not_depend_on_how_rows_come(sizes: list[int]) -> None:
    ranks = [rows[:320] for rows in made_ranks({}, {})]
    whole = StepBlocks(2).add(ranks)
    blocks, parts, begins = StepBlocks(2), [], [0, 0]
    for number, size in enumerate([*sizes, 320, 320]):
        rank = number % 2
        end = begins[rank] + size
        parts += blocks.add([ranks[each][begins[each] : end] if each == rank else ranks[each][:0] for each in range(2)])
        begins[rank] = end
    assert [block.first_step for block in parts] == [block.first_step for block in whole]
    assert all(np.array_equal(a.values, b.values) for a, b in zip(parts, whole, strict=True))


def test_a_block_has_medians_and_means_of_regular_steps() -> None:
    rows = made_rows(32, forward=1.0 * (np.arange(32) == 20))
    first, second = StepBlocks(1).add([rows])
    assert first.values[0, measure("compute")] == pytest.approx(6 * MS, rel=0.02)
    assert second.values[0, measure("median")] == pytest.approx(9 * MS, rel=0.02)
    assert second.values[0, measure("wall")] == pytest.approx(9 * MS + 1 / 16, rel=0.02)
    rows["flags"][20] = 0
    assert StepBlocks(1).add([rows])[1].values[0, measure("wall")] == pytest.approx(9 * MS, rel=0.02)


def test_a_block_with_few_regular_steps_is_none() -> None:
    rows = made_rows(48)
    rows["flags"][16:25] = 0
    assert [block.first_step for block in StepBlocks(1).add([rows])] == [0, 32]


def test_a_job_that_is_started_again_begins_anew() -> None:
    blocks = StepBlocks(1)
    assert len(blocks.add([made_rows(40)])) == 2
    assert [block.first_step for block in blocks.add([made_rows(40)])] == [0, 16]
