"""Device work that is the same on both sides, on traces of a few launches."""

from __future__ import annotations

import numpy as np
import pytest
from builder import Event, build, kernel, launch, op
from simulator import a_job, run_of

from traceq.causes.host_line import host_lines
from traceq.causes.rank_graph import RankGraph, rank_graph
from traceq.facts.events.device_work import device_work
from traceq.model import Trace

Work = tuple[str, int]  # name, stream


def calls(*launched: list[Work]) -> Trace:
    """A trace in which each call launches some work, as a graph does."""
    rows: list[Event] = [op("forward", 0, 100 * len(launched))]
    for number, works in enumerate(launched, 1):
        rows.append(launch(100 * number - 80, 5, number))
        rows += [
            kernel(name, 100 * number - 70 + 5 * index, 3, number, stream=stream)
            for index, (name, stream) in enumerate(works)
        ]
    return build(*rows)


def graph_of(a: Trace, b: Trace) -> RankGraph:
    return rank_graph(*host_lines(a, b, 0))


def names(trace: Trace, works: np.ndarray) -> list[str]:
    rows = device_work(trace).rows
    return [trace.events.text(int(rows[work])) if work >= 0 else "" for work in works.tolist()]


def pairs_of(a: Trace, b: Trace) -> list[tuple[str, str]]:
    """(name on A, name on B) of each unit, in their order."""
    work = graph_of(a, b).work
    return list(zip(names(a, work.a), names(b, work.b), strict=True))


def on(stream: int, letters: str) -> list[Work]:
    return [(letter, stream) for letter in letters]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("abc", "abc", ["aa", "bb", "cc"]),
        ("abc", "ac", ["aa", "b ", "cc"]),
        ("ac", "abc", ["aa", " b", "cc"]),
        ("abd", "acd", ["aa", "b ", " c", "dd"]),
        ("ab", "cd", ["ac", "bd"]),  # nothing in common, equally many
        ("a", "b", ["ab"]),
        ("a", "bc", ["a ", " b", " c"]),
    ],
)
def test_work_of_one_call_is_paired_by_name_and_in_order(a: str, b: str, expected: list[str]) -> None:
    """After a call that is the same on both sides."""
    pairs = pairs_of(calls(on(7, "z"), on(7, a)), calls(on(7, "z"), on(7, b)))
    assert pairs == [("z", "z"), *((x.strip(), y.strip()) for x, y in expected)]


def test_streams_with_other_numbers_are_the_same_by_what_runs_on_them() -> None:
    a = calls(on(7, "a"), on(20, "b"), on(7, "c"))
    b = calls(on(20, "a"), on(33, "b"), on(20, "c"))
    work = graph_of(a, b).work
    assert (work.a >= 0).all()
    assert (work.b >= 0).all()
    assert work.stream[0] == work.stream[2] != work.stream[1]
    assert work.before.tolist() == [-1, -1, 0]


def test_work_that_runs_on_another_stream_is_no_pair() -> None:
    a, b = calls(on(7, "a"), on(7, "b"), on(7, "c")), calls(on(7, "a"), on(20, "b"), on(7, "c"))
    assert pairs_of(a, b) == [("a", "a"), ("b", ""), ("", "b"), ("c", "c")]


def early(names_of: str, stream: int) -> list[Event]:
    return [kernel(name, 1 + 3 * index, 2, stream=stream) for index, name in enumerate(names_of)]


def with_early(works: list[Event], *launched: list[Work]) -> Trace:
    rows = [op("forward", 0, 300)]
    for number, (name, stream) in enumerate((work for part in launched for work in part), 1):
        rows += [launch(90 * number, 5, number), kernel(name, 90 * number + 20, 3, number, stream=stream)]
    return build(*works, *rows)


def test_work_from_before_the_window_is_paired_by_stream() -> None:
    a, b = (with_early(early(names_of, 7), on(7, "z")) for names_of in ("abc", "bc"))
    work = graph_of(a, b).work
    assert list(zip(names(a, work.a), names(b, work.b), strict=True)) == [("a", ""), ("b", "b"), ("c", "c"), ("z", "z")]
    assert work.has_call.tolist() == [False, False, False, True]
    assert work.place[:3].tolist() == [-1, -1, -1]


def test_work_on_a_stream_of_which_the_window_has_no_launch_is_paired_with_itself() -> None:
    trace = with_early(early("ab", 20), on(7, "z"))
    assert all(x == y for x, y in pairs_of(trace, trace))


def test_work_on_a_stream_of_which_all_work_was_renamed_is_paired() -> None:
    """As where another version of a library runs all collectives under other names."""
    a, b = (calls(on(7, "z"), on(20, name), on(7, "z")) for name in ("a", "b"))
    assert pairs_of(a, b) == [("z", "z"), ("a", "b"), ("z", "z")]


@pytest.mark.parametrize("seed", range(10))
def test_units_are_in_launch_order_and_follow_their_stream(seed: int) -> None:
    """Two programs of other lengths and costs."""
    a, b = (run_of(a_job(seed, num_steps=num)).traces[0] for num in (2, 3))
    work = graph_of(a, b).work
    for side, unit_of, trace in ((work.a, work.unit_of_a, a), (work.b, work.unit_of_b, b)):
        present = np.flatnonzero(side >= 0)
        assert sorted(side[present].tolist()) == list(range(len(device_work(trace))))
        assert unit_of[side[present]].tolist() == present.tolist()
    assert (np.diff(work.place) >= 0).all()
    for unit, before in enumerate(work.before.tolist()):
        earlier = np.flatnonzero(work.stream[:unit] == work.stream[unit])
        assert before == (earlier[-1] if len(earlier) else -1)
