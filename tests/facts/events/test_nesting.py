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

from traceq.facts.events import nesting
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import Nest, host_ops
from traceq.model import Category, Trace

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
