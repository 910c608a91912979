"""A larger batch without recorded shapes shows in the thread blocks of kernels that both sides launch as often."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from builder import build, kernel, launch, op, step
from made_sides import codes
from statements import of_code

from traceq.compare.diff import diff_runs
from traceq.model import Run

SHAPES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
BLOCKS = (400, 800, 1200, 1600, 2000)


def launched(blocks: Sequence[int], *, device: str = "NVIDIA H100", calls: int = 1, **args: Any) -> Run:
    """One step: kernels of these many blocks, each of another name, so many times each."""
    events = [step(0, 1000), op("aten::mm", 1, 900, **args)]
    for number, each in enumerate(blocks * calls):
        start = 10 + 40 * number
        name = f"elementwise_{number % len(blocks)}"
        events += [launch(start, 2, number), kernel(name, start + 3, 30, number, grid=[each, 1, 1], block=[128, 1, 1])]
    trace = build(*events, deviceProperties=[{"id": 0, "name": device}])
    return Run("made", (trace,))


def sizes(a: Run, b: Run) -> list[str]:
    """Return by how much inputs are told to be larger."""
    diff = diff_runs(a, b)
    texts = [str(each["differences"]) for each in of_code("work_differs", diff)]
    texts = [text for text in texts if "thread blocks" in text]
    assert bool(texts) == any("thread blocks" in caveat.text for caveat in diff.caveats)
    assert not texts or "confounded" in codes(diff)
    return re.findall(r"([\d.]+) times", " ".join(texts))


@pytest.mark.parametrize(("factor", "text"), [(4, "4"), (0.25, "0.25"), (1.5, "1.50")])
def test_inputs_of_another_size_are_told_without_shapes(factor: float, text: str) -> None:
    assert sizes(launched(BLOCKS), launched([int(factor * blocks) for blocks in BLOCKS])) == [text]


@pytest.mark.parametrize(
    "blocks",
    [
        BLOCKS,
        (420, 820, 1210, 1650, 2020),  # about as many
        (1600, 3200, 1200, 1600, 2000),  # of another code path: two of five
        (400, 1600, 3600, 6400, 10000),  # no one factor
        (1600, 3200, 4800),  # of too few kernels
    ],
)
def test_other_blocks_tell_no_size(blocks: Sequence[int]) -> None:
    assert sizes(launched(BLOCKS), launched(blocks)) == []


def test_few_blocks_are_rounded_too_much() -> None:
    assert sizes(launched((1, 2, 3, 4, 5)), launched((4, 8, 12, 16, 20))) == []


def test_shapes_another_device_and_other_numbers_of_launches_leave_it_open() -> None:
    larger = [4 * blocks for blocks in BLOCKS]
    assert sizes(launched(BLOCKS, **SHAPES), launched(larger, **SHAPES)) == []
    assert sizes(launched(BLOCKS), launched(larger, device="NVIDIA A100")) == []
    assert sizes(launched(BLOCKS), launched(larger, calls=2)) == []
