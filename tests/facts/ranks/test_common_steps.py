"""Steps that count on all ranks of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Event, kernel, launch, step, world, write

from traceq.facts.timeline.steps import steps
from traceq.runs.read import read

EARLY = kernel("of before", 1, 2)
"""Work that was launched before the trace: the step in which it runs is not whole."""


def step_events(number: int) -> list[Event]:
    start = 10 * number
    return [step(start, 10, number), launch(start + 2, 1, number + 1), kernel("k", start + 4, 5, number + 1)]


def counted(folder: Path, *ranks: list[Event]) -> list[list[bool]]:
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", *events, **world(rank, len(ranks)))
    return [steps(trace).counted.tolist() for trace in read(folder).traces]


THREE = [*step_events(0), *step_events(1), *step_events(2)]


def test_a_step_that_is_partial_on_one_rank_counts_on_none(tmp_path: Path) -> None:
    assert counted(tmp_path, THREE, [*THREE, EARLY], THREE) == [[False, True, True]] * 3


@pytest.mark.parametrize("others", [step_events(0), step_events(3)])
def test_each_rank_keeps_a_step(tmp_path: Path, others: list[Event]) -> None:
    """One may have a single step that is partial elsewhere, or steps of other numbers."""
    assert counted(tmp_path, [*THREE, EARLY], others) == [[False, True, True], [True]]
