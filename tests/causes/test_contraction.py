"""A contracted graph has the longest paths of the whole one, in every case of weights, over fewer edges."""

from __future__ import annotations

import numpy as np
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st

from traceq.causes.job_graph import job_graph
from traceq.whatif.rank_cases import contract

NOBODY = np.empty(0, np.int64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def times(num: int, source: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return job_graph(num, source, target, NOBODY, NOBODY).times(weight)


def test_a_chain_is_one_edge_and_of_two_ways_the_longest_of_each_case_stays() -> None:
    source, target = ints(0, 1, 2, 0, 4), ints(1, 2, 3, 4, 3)
    weight = np.column_stack([ints(1, 2, 3, 4, 5), ints(1, 2, 30, 4, 5)])
    kept = np.isin(np.arange(5), [0, 3])
    assert [column.tolist() for column in contract(source, target, weight, kept)] == [[0], [3], [[9, 33]]]


def test_what_leads_nowhere_is_left_out() -> None:
    source, target, weight = contract(
        ints(0, 1, 0), ints(1, 2, 3), np.ones((3, 1), np.int64), np.isin(np.arange(4), [0, 3])
    )
    assert (source.tolist(), target.tolist(), weight.tolist()) == ([0], [3], [[1]])


@given(st.integers(0, 2**32 - 1))
@up_to(60)
def test_kept_moments_are_where_they_were(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num, size = int(rng.integers(2, 30)), int(rng.integers(1, 60))
    source = rng.integers(0, num - 1, size)
    target = rng.integers(source + 1, num)
    weight = rng.integers(-5, 20, (size, 3))
    kept = rng.random(num) < 0.3
    few = contract(source, target, weight, kept)
    assert len(few[0]) <= len(set(zip(source.tolist(), target.tolist(), strict=True)))
    for case in range(3):
        whole = times(num, source, target, weight[:, case])
        assert times(num, few[0], few[1], few[2][:, case])[kept].tolist() == whole[kept].tolist()
