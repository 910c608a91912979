"""Which op is open at an instant, and what is around it, as a look at every op would say."""

from __future__ import annotations

import sys
from unittest.mock import patch

import numpy as np
import pytest
from builder import build, op, step
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st
from paths import FIXTURES

import traceq as library
from traceq.facts.events import nesting
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import Nest, host_ops, op_nests, tracks
from traceq.model import Category, Trace
from traceq.renderers.json import sheet_to_json

some_ops = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.sampled_from("abc")), min_size=1, max_size=12)


def traced(ops: list[tuple[int, int, str]]) -> tuple[Trace, Nest]:
    """The ops of one thread, which may cross."""
    trace = build(step(0, 50), *(op(name, start, dur) for start, dur, name in ops))
    (nest,) = host_ops(trace).values()
    return trace, nest


@given(some_ops)
@up_to(50)
def test_an_op_is_open_where_one_has_begun_and_not_ended(ops: list[tuple[int, int, str]]) -> None:
    _, nest = traced(ops)
    times = np.arange(0, 36_000, 500)
    is_open = [any(1000 * start <= t < 1000 * (start + dur) for start, dur, _ in ops) for t in times.tolist()]
    assert nest.is_open(times).tolist() == is_open
    assert (nest.innermost_at(times) >= 0).tolist() == is_open


@given(some_ops, st.sampled_from([1, 2, 32]))
@up_to(100)
def test_the_innermost_op_is_the_last_to_begin_of_those_that_are_open(
    ops: list[tuple[int, int, str]], few_levels: int
) -> None:
    _, nest = traced(ops)
    times = np.arange(0, 36_000, 500)
    spans = list(zip(nest.start.tolist(), nest.end.tolist(), strict=True))
    expected = [
        max((i for i, (start, end) in enumerate(spans) if start <= t < end), default=-1) for t in times.tolist()
    ]
    with patch.object(nesting, "_FEW_LEVELS", few_levels):
        assert nest.innermost_at(times).tolist() == expected


@pytest.mark.parametrize("question", ["innermost_at", "first_enclosing", "outermost", "next_outside"])
def test_the_work_of_a_question_does_not_grow_with_the_depth(question: str) -> None:
    def num_calls(depth: int) -> int:
        rows = np.arange(depth)
        nest = Nest(rows, rows, 2 * depth - rows, rows - 1)
        late, matches = np.arange(depth, 2 * depth), rows == 0
        arguments = {"innermost_at": (late,), "first_enclosing": (rows, matches)}.get(question, ())
        calls = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            getattr(nest, question)(*arguments)
        finally:
            sys.setprofile(None)
        return calls

    assert num_calls(10_000) < 1.5 * num_calls(100) + 20


@given(some_ops)
@up_to(50)
def test_the_first_enclosing_op_is_found_by_going_from_parent_to_parent(ops: list[tuple[int, int, str]]) -> None:
    trace, nest = traced(ops)
    matches = np.array([trace.events.text(row) == "a" for row in nest.rows.tolist()])
    expected = []
    for parent in range(len(nest.rows)):
        while parent >= 0 and not matches[parent]:
            parent = int(nest.parent[parent])
        expected.append(parent)
    index = np.r_[-1, np.arange(len(nest.rows))]
    for few_levels in (1, 32):
        with patch.object(nesting, "_FEW_LEVELS", few_levels):
            assert nest.first_enclosing(index.copy(), matches).tolist() == [-1, *expected]


@given(some_ops)
@up_to(20)
def test_names_are_told_apart_as_sorting_them_would(ops: list[tuple[int, int, str]]) -> None:
    trace, _ = traced(ops)
    rows = trace.events.rows(Category.CPU_OP)
    ids, inverse = unique_names(trace.events, rows)
    assert ids.tolist() == sorted(set(trace.events.name[rows].tolist()))
    assert (ids[inverse] == trace.events.name[rows]).all()


some_threads = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=15)


@given(some_threads, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=20))
@up_to(100)
def test_threads_are_nested_together_as_each_alone(
    ops: list[tuple[int, int, int]], instants: list[tuple[int, int]]
) -> None:
    def answers(many: int) -> tuple[object, ...]:
        with patch.object(nesting, "_MANY_THREADS", many):
            trace = build(step(0, 50), *(op("a", start, dur, tid=tid) for start, dur, tid in ops))
            nests, numbers = op_nests(trace), dict(enumerate(host_ops(trace)))
        track = np.array([numbers.get(thread, 7_777) for thread, _ in instants], np.int64)
        time_ns = np.array([1000 * time for _, time in instants], np.int64)
        row, index = np.full(len(track), -1), np.full(len(track), -1)
        for part in nests.on(track, apart=[numbers[0]]):
            innermost = part.innermost_at(time_ns[part.which])
            row[part.which] = np.r_[part.nest.rows, -1][innermost]
            index[part.which] = np.where(innermost >= 0, innermost - part.first, -1)
        alone = [(track, nest.rows.tolist(), nest.parent.tolist()) for track, nest in nests.by_track.items()]
        return alone, row.tolist(), index.tolist()

    assert answers(1) == answers(1000)


def many_threads(last: int) -> Trace:
    return build(step(0, 50), *(op("a", tid, 5, tid=tid) for tid in range(1, 100)), op("b", last, 5, tid=100))


def test_many_threads_are_one_nest() -> None:
    trace = many_threads(100)
    assert len(op_nests(trace).whole) == len(list(op_nests(trace).on(tracks(trace)))) == 1


def test_threads_whose_times_are_too_far_apart_keep_their_own() -> None:
    trace = many_threads(1 << 50)
    assert len(op_nests(trace).whole) == len(host_ops(trace)) == 100


def test_reports_of_threads_nested_together_are_as_of_each_alone() -> None:
    path = FIXTURES / "example/job/rank0.json"
    alone = sheet_to_json(library.analyze(library.read(path)))
    with patch.object(nesting, "_MANY_THREADS", 1):
        assert sheet_to_json(library.analyze(library.read(path))) == alone
