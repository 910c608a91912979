"""Pipelines of torch, recorded on gloo: the bubble is that of the schedule's own list of actions, played apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from oracle.pipelines import spent
from pipeline_simulation import idle_shares, recorded

from traceq.analysis.registry import analyze
from traceq.facts.ranks.job import job_of
from traceq.facts.ranks.pipelines import UNKNOWN
from traceq.runs.read import read

pytest.importorskip("torch", reason="a pipeline is a torch program")
pytestmark = pytest.mark.torch

JOB = Path(__file__).parents[1] / "support" / "pipeline_job.py"
SCHEDULES = {
    "ScheduleGPipe": "GPipe",
    "Schedule1F1B": "1F1B",
    "ScheduleLoopedBFS": "looped BFS",
    "ScheduleInterleaved1F1B": "interleaved 1F1B",
    "ScheduleInterleavedZeroBubble": "interleaved ZB1P",
    "ScheduleZBVZeroBubble": UNKNOWN,
    "ScheduleDualPipeV": UNKNOWN,
}
BY_MESSAGES = ("GPipe", "1F1B", "looped BFS", "interleaved 1F1B")
"""Schedules that are recognised without names of passes."""
NAMED = re.compile(r"PP:|Forward \d|Backward \d")
MOST_POINTS = 2.0
"""Percentage points between the bubble in the trace and in the simulation."""


def record(folder: Path, num_ranks: int, num_microbatches: int, milliseconds: int, names: Sequence[str]) -> None:
    words = [str(folder), str(num_ranks), str(num_microbatches), str(milliseconds), *names]
    subprocess.run([sys.executable, str(JOB), *words], check=True, capture_output=True, timeout=540)


def points_apart(folder: Path, schedule: str, num_ranks: int, num_microbatches: int) -> float:
    """The most percentage points between a rank's bubble and that of the simulation; all else is equal."""
    points, run = [], read(folder)
    rows = analyze(run, "pipeline").table("pipeline").to_dicts()
    assert [row["rank"] for row in rows] == list(range(num_ranks))
    assert {row["schedule"] for row in rows} == {schedule}
    assert {row["num_microbatches"] for row in rows} == {num_microbatches}
    simulated = idle_shares(recorded(folder))
    parts = ("warmup", "steady", "cooldown", "transfer")
    times = job_of(run).messages
    for row, expected in zip(rows, spent(sorted(folder.glob("rank*.json")), times.offset.tolist()), strict=True):
        assert sum(row[f"{part}_ns"] for part in (*parts, "passes", "other")) == row["step_ns"]
        assert {part: row[f"{part}_ns"] for part in (*parts, "passes", "wait", "other")} == pytest.approx(
            {part: expected[part] for part in (*parts, "passes", "wait", "other")}, abs=5
        )
        idle = sum(row[f"{part}_ns"] for part in parts)
        share = 100 * idle / (idle + row["passes_ns"])
        points.append(abs(share - 100 * simulated[row["rank"]]))
    return max(points)


@pytest.mark.slow
def test_the_bubble_of_1f1b_is_that_of_its_simulation(tmp_path: Path) -> None:
    record(tmp_path, 2, 4, 20, ["Schedule1F1B"])
    assert points_apart(tmp_path / "Schedule1F1B", "1F1B", 2, 4) <= MOST_POINTS


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 6), (4, 8)])
def test_the_bubble_of_each_schedule_is_that_of_its_simulation(
    num_ranks: int, num_microbatches: int, tmp_path: Path
) -> None:
    record(tmp_path, num_ranks, num_microbatches, 20, list(SCHEDULES))
    for name, schedule in SCHEDULES.items():
        assert points_apart(tmp_path / name, schedule, num_ranks, num_microbatches) <= MOST_POINTS
        without_names(tmp_path / name)
        rows = analyze(read(tmp_path / name), "pipeline").table("pipeline").to_dicts()
        assert {row["schedule"] for row in rows} <= {schedule, UNKNOWN}
        assert ({row["schedule"] for row in rows} == {schedule}) == (schedule in (*BY_MESSAGES, UNKNOWN))


def without_names(folder: Path) -> None:
    """Take the annotations of passes out of the traces."""
    for path in folder.glob("rank*.json"):
        content = json.loads(path.read_text())
        rows = content["traceEvents"]
        content["traceEvents"] = [row for row in rows if not NAMED.match(str(row.get("name", "")))]
        path.write_text(json.dumps(content))
