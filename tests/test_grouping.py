"""Rows that agree in all columns form a group, in order of the columns, however far apart their values lie."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceq.grouping import absent, by_value, equal_pairs, group, inverse

near, far = st.integers(-2, 3), st.sampled_from([-(2**63), -1, 0, 7, 2**40, 2**62, 2**63 - 1])


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[near | far] * width))))
def test_groups_are_the_distinct_rows_in_order(rows: list[tuple[int, ...]]) -> None:
    width = len(rows[0]) if rows else 1
    table = np.array(rows, np.int64).reshape(-1, width)
    result = group(list(table.T))
    keys = sorted(set(rows))
    assert result.keys.tolist() == [list(key) for key in keys]
    assert result.group_ids.tolist() == [keys.index(row) for row in rows]
    assert result.first.tolist() == [rows.index(key) for key in keys]
    assert result.count() == [rows.count(key) for key in keys]
    assert result.sum(np.arange(len(rows))) == [sum(i for i, row in enumerate(rows) if row == key) for key in keys]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2**40))))
def test_a_group_has_rows_in_some_parts_and_adds_up_to_most_in_one(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    key, part, value = np.array(rows, np.int64).reshape(-1, 3).T
    num, largest = group([key]).by_part(part, value)
    sums: dict[int, dict[int, int]] = {}
    for k, p, v in rows:
        sums.setdefault(k, {})[p] = sums.get(k, {}).get(p, 0) + v
    assert num == [len(sums[k]) for k in sorted(sums)]
    assert largest == [max(sums[k].values()) for k in sorted(sums)]


@given(st.lists(st.integers(-3, 40) | far))
def test_indices_by_value_are_those_of_a_search(values: list[int]) -> None:
    column = np.array(values, np.int64)
    assert [(value, index.tolist()) for value, index in by_value(column)] == [
        (value, np.flatnonzero(column == value).tolist()) for value in sorted(set(values))
    ]


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(0, 3))
def test_positions_and_absent_numbers_are_those_of_a_search(numbers: list[int], num: int, num_none: int) -> None:
    order = [*[-1] * num_none, *numbers[:num]]
    positions = [order.index(number) if number in order else -1 for number in range(8)]
    assert inverse(np.array(order, np.int64), 8).tolist() == positions
    assert absent(np.array(numbers[:num], np.int64), 8).tolist() == sorted(numbers[num:])


@given(st.lists(st.integers(-3, 3)), st.lists(st.integers(-3, 3)))
def test_equal_pairs_are_all_pairs_of_equal_values(a: list[int], b: list[int]) -> None:
    pairs = equal_pairs(np.array(a, np.int64), np.array(b, np.int64))
    expected = [(x, y) for x, of_a in enumerate(a) for y, of_b in enumerate(b) if of_a == of_b]
    assert list(zip(*(side.tolist() for side in pairs), strict=True)) == expected
