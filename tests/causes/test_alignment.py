"""Anchors that are the same on both sides, on host lines of a few launches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builder import Event, build, kernel, launch, op, step

from traceq.causes.alignment import Alignment, align
from traceq.causes.anchors import AnchorKind
from traceq.causes.host_line import HostLine, host_lines
from traceq.model import Trace

Launch = tuple[str, str]  # op, kernel
MM, ADD, RELU = ("mm", "gemm"), ("add", "elementwise"), ("relu", "elementwise")


def launched(launches: Sequence[Launch], start: int = 0) -> list[Event]:
    rows: list[Event] = []
    for number, (name, runs) in enumerate(launches, start + 1):
        begin = 100 * number
        rows += [op(name, begin, 20), launch(begin + 5, 5, number), kernel(runs, begin + 15, 30, number)]
    return rows


def aligned(a: Trace, b: Trace) -> tuple[HostLine, HostLine, Alignment]:
    lines = host_lines(a, b, 0)
    return (*lines, align(*lines))


def pairs_of(a: Sequence[Launch], b: Sequence[Launch]) -> list[tuple[int, int, bool]]:
    """(number of the launch on A, on B, whether their strictest keys are equal)."""
    line_a, line_b, result = aligned(build(*launched(a)), build(*launched(b)))
    assert all(line_a.kind[result.a] == line_b.kind[result.b])
    assert line_a.kind[0] == line_b.kind[0] == AnchorKind.START
    return [
        (x - 1, y - 1, exact)
        for x, y, exact in zip(result.a.tolist(), result.b.tolist(), result.exact.tolist(), strict=True)
        if line_a.kind[x] == AnchorKind.LAUNCH
    ]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([MM, ADD, MM], [MM, ADD, MM], [(0, 0, True), (1, 1, True), (2, 2, True)]),
        ([MM, ADD], [MM, RELU, ADD], [(0, 0, True), (1, 2, True)]),
        ([MM, RELU, ADD, MM], [MM, MM], [(0, 0, True), (3, 1, True)]),
        ([MM, ADD, MM], [MM, RELU, MM], [(0, 0, True), (1, 1, False), (2, 2, True)]),  # the same kernel
        ([MM, ("mm", "hopper")], [MM, ("mm", "ampere")], [(0, 0, True), (1, 1, False)]),  # the same op
        ([MM, ADD], [MM, ("mul", "product")], [(0, 0, True), (1, 1, False)]),  # the same position
        ([MM, ADD], [MM, ("mul", "product"), ("div", "quotient")], [(0, 0, True)]),
    ],
)
def test_launches_are_paired_by_ever_looser_keys(
    a: list[Launch], b: list[Launch], expected: list[tuple[int, int, bool]]
) -> None:
    assert pairs_of(a, b) == expected
    assert pairs_of(b, a) == [(y, x, exact) for x, y, exact in expected]


def stepped(lengths: Sequence[int]) -> Trace:
    """A trace of steps that each launch once at their beginning, under a name of their length."""
    rows: list[Event] = []
    begin = 1000
    for number, length in enumerate(lengths):
        rows += [step(begin, length, number), op(f"op{length}", begin + 5, 20), launch(begin + 10, 5, number + 1)]
        rows.append(kernel("gemm", begin + 20, length - 30, number + 1))
        begin += length
    return build(*rows)


def test_all_steps_of_the_shorter_side_are_paired_with_the_most_typical_run_of_the_longer() -> None:
    """The windows of B are 290, 400, 100, 130, 140, of mean 212: 400, 100, 130 are nearest, of mean 210."""
    short, long = stepped([200, 100, 100]), stepped([300, 400, 100, 130, 140])
    line_a, line_b, result = aligned(short, long)
    (_, _, turned) = aligned(long, short)
    assert (result.shift, turned.shift) == (1, -1)
    steps_a, steps_b = (
        line.ref[side][line.kind[side] == AnchorKind.STEP_BEGIN]
        for line, side in ((line_a, result.a), (line_b, result.b))
    )
    assert (steps_b - steps_a).tolist() == [1] * len(steps_a)


def test_a_launch_is_not_paired_with_one_of_another_step() -> None:
    """The second launch moves from the first step into the second."""

    def run(until: int) -> Trace:
        return build(step(50, until - 50, 0), step(until, 500 - until, 1), *launched([MM, ADD, RELU]))

    line_a, line_b, result = aligned(run(290), run(190))
    paired = [int(line_a.ref[x]) for x in result.a if line_a.kind[x] == AnchorKind.LAUNCH]
    rows = line_a.ref[line_a.kind == AnchorKind.LAUNCH].tolist()
    assert paired == [rows[0], rows[2]]
    assert len(line_a) == len(line_b) == 9


def test_the_same_kernels_are_paired_before_the_same_ops() -> None:
    """A gap of two launches on A and three on B: by its op, the launch of A would be paired with the second of B."""
    a = [MM, ("view", "copy"), ("t", "norm"), MM]
    b = [MM, ("clone", "copy"), ("view", "fill"), ("to", "norm"), MM]
    assert pairs_of(a, b) == [(0, 0, True), (1, 1, False), (2, 3, False), (3, 4, True)]
