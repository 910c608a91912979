"""Interval algebra agrees with a bitmap of the instants 0..59."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from traceq import intervals
from traceq.intervals import Spans, spans

SIZE = 60

edge = st.integers(0, SIZE)
pairs = st.lists(st.tuples(edge, edge), max_size=12)
proper = st.lists(st.tuples(edge, edge).filter(lambda pair: pair[0] < pair[1]), max_size=12)
instants = st.lists(st.integers(-5, SIZE + 5), max_size=20)


def columns(given_pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    table = np.array(given_pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def bitmap(given_pairs: list[tuple[int, int]]) -> NDArray[np.bool_]:
    bits = np.zeros(SIZE, np.bool_)
    for start, end in given_pairs:
        bits[start:end] = True
    return bits


def bitmap_of(result: Spans) -> NDArray[np.bool_]:
    return bitmap([tuple(part) for part in result.tolist()])


def is_canonical(result: Spans) -> bool:
    """Sorted, disjoint, not touching, none empty: one set of instants has one form."""
    edges = result.ravel()
    return result.shape == (len(result), 2) and bool((np.diff(edges) > 0).all())


@given(pairs)
def test_spans_are_the_instants_of_any_intervals_in_one_form(some: list[tuple[int, int]]) -> None:
    result = spans(*columns(some))
    assert is_canonical(result)
    assert (bitmap_of(result) == bitmap([pair for pair in some if pair[0] < pair[1]])).all()


@given(pairs, pairs)
def test_union_intersect_and_subtract_are_or_and_and_not(
    first: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = spans(*columns(first)), spans(*columns(other))
    for operation, expected in (
        (intervals.union, bitmap_of(a) | bitmap_of(b)),
        (intervals.intersect, bitmap_of(a) & bitmap_of(b)),
        (intervals.subtract, bitmap_of(a) & ~bitmap_of(b)),
    ):
        result = operation(a, b)
        assert is_canonical(result)
        assert (bitmap_of(result) == expected).all()


@given(pairs, edge, edge)
def test_the_complement_is_what_is_left_of_a_range(some: list[tuple[int, int]], start: int, end: int) -> None:
    a = spans(*columns(some))
    result = intervals.complement(a, start, end)
    assert is_canonical(result)
    assert (bitmap_of(result) == bitmap([(start, end)]) & ~bitmap_of(a)).all()


@given(pairs, pairs)
def test_measures_count_instants(some: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> None:
    a = spans(*columns(some))
    assert intervals.measure(a) == bitmap_of(a).sum()
    within = intervals.measure_within(a, *columns(ranges))
    assert within.tolist() == [bitmap_of(a)[start:end].sum() for start, end in ranges]


@given(pairs, pairs)
def test_what_two_have_in_common_is_as_long_as_their_intersection(
    first: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = spans(*columns(first)), spans(*columns(other))
    assert intervals.measure_common(a, b) == (bitmap_of(a) & bitmap_of(b)).sum()


@given(pairs, instants)
def test_an_instant_is_found_in_the_part_that_holds_it(some: list[tuple[int, int]], requested: list[int]) -> None:
    a = spans(*columns(some))
    for some_order in (requested, sorted(requested), sorted(requested * 9)):
        position = np.array(some_order, np.int64)
        expected = [next((i for i, (start, end) in enumerate(a.tolist()) if start <= t < end), -1) for t in some_order]
        assert intervals.span_index(a, position).tolist() == expected
        assert intervals.contains(a, position).tolist() == [index >= 0 for index in expected]


@given(st.lists(st.integers(0, 2000), max_size=300).map(sorted), st.lists(st.integers(-5, 2005), max_size=40))
def test_starts_are_counted_however_far_the_next_instant_is(starts: list[int], requested: list[int]) -> None:
    for in_order in (requested, sorted(requested), sorted(requested, reverse=True)):
        num = intervals.count_before(np.array(starts, np.int64), np.array(in_order, np.int64))
        assert num.tolist() == [sum(start <= t for start in starts) for t in in_order]


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(1, SIZE), st.integers(1, 9)), max_size=12), instants)
def test_the_last_interval_that_is_open_is_looked_for_some_levels_up(
    some: list[tuple[int, int, int]], requested: list[int]
) -> None:
    start, ns, up = np.array(sorted(some), np.int64).reshape(-1, 3).T
    end, parent, levels = start + ns, np.maximum(np.arange(len(start)) - up, -1), 2

    def expected(instant: int) -> int:
        number = int((start <= instant).sum()) - 1
        for _ in range(levels + 1):
            if number < 0 or end[number] > instant:
                return number
            number = int(parent[number])
        return number if number < 0 else intervals.TOO_DEEP

    number = intervals.last_open(start, end, parent, np.array(requested, np.int64), levels)
    assert number.tolist() == [expected(instant) for instant in requested]


@given(proper, instants)
def test_intervals_are_cut_where_an_instant_lies_inside(some: list[tuple[int, int]], requested: list[int]) -> None:
    whole, cuts = spans(*columns(some)), sorted(set(requested))
    parts, of = intervals.cut(whole, np.array(cuts, np.int64))
    expected = []
    for number, (start, end) in enumerate(whole.tolist()):
        edges = [start, *(t for t in cuts if start < t < end), end]
        expected += [(number, *part) for part in pairwise(edges)]
    assert [(number, *part) for number, part in zip(of.tolist(), parts.tolist(), strict=True)] == expected


@given(st.lists(st.lists(st.integers(-9, 9)), min_size=1))
def test_distinct_numbers_are_sorted_and_there_once(some: list[list[int]]) -> None:
    result = intervals.sorted_unique(*(np.array(numbers, np.int64) for numbers in some))
    assert result.tolist() == sorted({number for numbers in some for number in numbers})


@given(proper)
def test_first_come_gives_each_instant_to_the_interval_that_started_first(some: list[tuple[int, int]]) -> None:
    some = sorted(some, key=lambda pair: pair[0])
    expected = [next((i for i, (start, end) in enumerate(some) if start <= t < end), -1) for t in range(SIZE)]
    parts, owners = intervals.earliest_owner(*columns(some))
    result = np.full(SIZE, -1)
    for (start, end), owner in zip(parts.tolist(), owners.tolist(), strict=True):
        assert (result[start:end] == -1).all()
        result[start:end] = owner
    assert result.tolist() == expected


def test_touching_intervals_are_one_and_empty_ones_are_none() -> None:
    assert spans(*columns([(5, 9), (0, 5), (7, 7), (8, 2)])).tolist() == [[0, 9]]


@pytest.mark.parametrize("origin_ns", [0, 1_700_000_000_000_000_000])
def test_times_since_1970_keep_their_nanoseconds(origin_ns: int) -> None:
    a = spans(*(column + origin_ns for column in columns([(0, 3), (4, 9)])))
    assert intervals.measure(a) == 8
    assert (intervals.complement(a, origin_ns, origin_ns + 10) - origin_ns).tolist() == [[3, 4], [9, 10]]


@given(st.lists(st.lists(st.integers(-5, SIZE), max_size=300).map(sorted), min_size=1, max_size=4))
def test_distinct_numbers_of_runs_ascend(runs: list[list[int]]) -> None:
    numbers = [np.array(run, np.int64) for run in runs]
    assert intervals.sorted_unique(*numbers).tolist() == sorted(set().union(*runs))
    assert intervals.ascending(np.concatenate(numbers)).tolist() == sorted(chain(*runs))
