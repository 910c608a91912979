"""How far a recording is, in words."""

from __future__ import annotations

import pytest

from traceq.recorder.process.progress_counters import ProgressCounters


@pytest.mark.parametrize(
    ("num_ended", "text"),
    [(0, "0 of 1,200 steps"), (1_200, "1,200 of 1,200 steps"), (1_201, "1,201 steps, not 1,200, as those beside")],
)
def test_steps_that_run_again_are_no_part_of_those_planned(num_ended: int, text: str) -> None:
    progress = ProgressCounters()
    progress.plan_steps(1_200)
    for _ in range(num_ended):
        progress.count_step()
    assert progress.text.startswith(text)
