"""Which Python line runs while the main thread is in no op."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from builder import Event, annotation, build, op, step, table
from hypothesis import given
from hypothesis import strategies as st

from traceq.facts.timeline.python_places import lines_between_ops, python_places
from traceq.grouping import ordinals
from traceq.model import Manifest, SourceLines

LINES = ("train.py:9 main", "check.py:2 check", "")
MANIFEST = Manifest(1, "", "", "", {}, (), ("forward",), 1, 0)
Table = Mapping[str, tuple[tuple[tuple[int, int], ...], ...]]


def named_times(between: Table, *events: Event) -> list[tuple[int, int, str]]:
    """(begin, end, line), us from the start of the first step."""
    recorded = {"lines": SourceLines(LINES, {}, between), "manifest": MANIFEST}
    trace = build(step(0, 100, 1), step(100, 100, 2), *events, recorded=recorded)
    lines = lines_between_ops(trace)
    base = trace.events.ts.min()
    return [
        ((begin - base) // 1000, (end - base) // 1000, lines.lines[line])
        for (begin, end), line in zip(lines.parts.tolist(), lines.line.tolist(), strict=True)
    ]


def test_the_time_behind_the_nth_op_has_its_lines_in_proportion() -> None:
    between = {"other|x": (((0, 100),), ((0, 25), (1, 75)))}
    ops = op("x", 10, 10), op("x", 30, 10), op("y", 80, 10), op("x", 110, 80)
    assert named_times(between, *ops) == [
        (20, 30, "train.py:9 main"),
        (40, 50, "train.py:9 main"),
        (50, 80, "check.py:2 check"),
        (190, 200, "train.py:9 main"),
    ]


def test_edges_of_phases_and_of_steps_are_places_too() -> None:
    between = {"|": (((0, 100),),), "forward|": (((1, 100),),), "|forward": (((0, 100),),)}
    assert named_times(between, annotation("forward", 20, 30), op("x", 30, 10)) == [
        (0, 20, "train.py:9 main"),
        (20, 30, "check.py:2 check"),
        (50, 100, "train.py:9 main"),
        (100, 200, "train.py:9 main"),
    ]


def test_what_the_table_does_not_know_has_no_line() -> None:
    between: Table = {"other|x": ((), ((2, 100),))}
    assert named_times(between, op("x", 10, 10), op("x", 30, 10), op("x", 60, 10)) == []
    assert named_times({}, op("x", 10, 10)) == []


def test_ops_inside_ops_do_not_count() -> None:
    between = {"other|x": (((0, 100),), ((1, 100),))}
    assert named_times(between, op("x", 10, 40), op("x", 20, 10), op("y", 60, 1)) == [(50, 60, "train.py:9 main")]


def test_python_without_an_op_is_named_by_its_line() -> None:
    recorded = {"lines": SourceLines(LINES, {}, {"other|x": (((1, 100),),)}), "manifest": MANIFEST}
    trace = build(step(0, 100), op("x", 10, 10), op("y", 80, 20), recorded=recorded)
    places = python_places(trace)
    (track,) = places.parts
    named = [
        (end - begin, places.places[place].line)
        for (begin, end), place in zip(places.parts[track].tolist(), places.place[track].tolist(), strict=True)
    ]
    assert (60_000, "check.py:2 check") in named


def test_idle_time_in_python_has_the_lines_that_run_then() -> None:
    """Of 60 us between two ops three quarters are of one function and a quarter of another."""
    recorded = {"lines": SourceLines(LINES, {}, {"other|x": (((0, 25), (1, 75)),)}), "manifest": MANIFEST}
    rows = table(build(step(0, 100), op("x", 10, 10), op("y", 80, 20), recorded=recorded), "idle")
    times = {row["line"]: row["dur_ns"] for row in rows}
    assert times == {"": 10_000, "train.py:9 main": 15_000, "check.py:2 check": 45_000}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2))))
def test_ordinals_count_equal_rows_before(rows: list[tuple[int, int]]) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 2).T
    assert ordinals(list(columns)).tolist() == [rows[:index].count(row) for index, row in enumerate(rows)]
