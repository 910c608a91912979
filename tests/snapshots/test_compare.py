"""`traceq diff a.pickle b.pickle`: what came and went at the peak, by line, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builder import step, write
from golden_files import check_golden
from hypothesis import given
from hypothesis import strategies as some
from snapshots import MIB, Allocator, stack, training
from terminal import traceq

BASE = 1 << 40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compared(a: Allocator, b: Allocator) -> dict[str, Any]:
    done = traceq("diff", "--json", a.write(Path("a.pickle")), b.write(Path("b.pickle")))
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["schema"] == "traceq.snapshot_diff/2"
    return dict(document)


@pytest.mark.parametrize(
    ("options", "golden"),
    [([], "snapshot/diff.txt"), (["--markdown"], "snapshot/diff.md"), (["--json"], "snapshot/diff.json")],
)
def test_longer_activations_read_like_this(options: list[str], golden: str) -> None:
    a, b = training().write(Path("a.pickle")), training(activation=90 * MIB).write(Path("b.pickle"))
    done = traceq("diff", *options, a, b)
    assert (done.code, done.err) == (0, "")
    check_golden(golden, done.out)


@given(sizes=some.tuples(*(some.integers(1, 90 * MIB) for _ in range(2))), line=some.sampled_from([41, 42, 43, 60]))
def test_every_table_closes_to_the_byte(sizes: tuple[int, int], line: int) -> None:
    document = compared(training(activation=sizes[0]), training(activation=sizes[1], line=line))
    peak = document["memory_moments"][0]
    assert peak["delta_bytes"] == peak["b_bytes"] - peak["a_bytes"]
    for table in ("memory_kinds", "memory_lines"):
        for key in ("a_bytes", "b_bytes", "delta_bytes"):
            assert sum(row[key] for row in document[table]) == peak[key]
    reserved = sum(row["delta_bytes"] for row in document["memory_reserved"])
    end = document["memory_moments"][-1]
    assert reserved == end["b_reserved_bytes"] - end["a_reserved_bytes"]


@pytest.mark.slow
@given(sizes=some.tuples(*(some.integers(1, 90 * MIB) for _ in range(2))))
def test_the_other_way_round_every_delta_has_the_other_sign(sizes: tuple[int, int]) -> None:
    a, b = (training(activation=size) for size in sizes)
    forth, back = (
        {(r["kind"], r["line"]): r["delta_bytes"] for r in compared(*x)["memory_lines"]} for x in ((a, b), (b, a))
    )
    assert forth == {key: -delta for key, delta in back.items()}


def lines(*places: str) -> Allocator:
    allocator = Allocator()
    for number, place in enumerate(places):
        allocator.alloc(BASE + number * MIB, 1000 * (number + 1), stack(place))
    return allocator


@pytest.mark.parametrize(
    ("a", "b", "changed"),
    [
        (["m.py:4 f", "m.py:9 f"], ["m.py:4 f", "m.py:9 f"], {}),
        (["m.py:4 f", "m.py:9 f"], ["m.py:5 f", "m.py:10 f"], {}),  # code above moved it
        (["m.py:4 f"], ["m.py:4 f", "m.py:9 f"], {"m.py:9 f": 2000}),
        (["m.py:4 f", "m.py:9 f"], ["m.py:4 f"], {"m.py:9 f": -2000}),
        (["m.py:4 f"], ["m.py:5 f", "m.py:6 f"], {"m.py f": 2000}),
        (["m.py:4 f"], ["m.py:9 g"], {"m.py:4 f": -1000, "m.py:9 g": 1000}),
    ],
)
def test_lines_that_moved_within_their_function_are_the_same(
    a: list[str], b: list[str], changed: dict[str, int]
) -> None:
    rows = compared(lines(*a), lines(*b))["memory_lines"]
    assert {row["line"]: row["delta_bytes"] for row in rows if row["delta_bytes"]} == changed


def test_the_same_snapshot_is_the_same() -> None:
    (finding,) = compared(training(), training())["findings"]
    assert finding["measures"]["after_bytes"] == finding["measures"]["before_bytes"]
    assert "delta_bytes" not in finding["measures"]


def test_ends_are_compared_where_one_has_no_history() -> None:
    training().write(Path("a.pickle"), last=0)
    training().write(Path("b.pickle"))
    done = traceq("diff", "a.pickle", "b.pickle")
    assert "went at the end" in done.out
    assert "a.pickle: no history" in done.err


def test_a_snapshot_is_compared_with_snapshots_alone() -> None:
    training().write(Path("a.pickle"))
    write(Path("rank0.json"), step(0, 100))
    for pair in (("a.pickle", "rank0.json"), ("rank0.json", "a.pickle")):
        done = traceq("diff", *pair)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err.startswith("traceq: a.pickle: a memory snapshot")
    for gate in (("--fail-on", "material"), ("--fail-on-delta", "5%")):
        done = traceq("diff", *gate, "a.pickle", "a.pickle")
        assert (done.code, "has no verdict" in done.err) == (2, True)
