"""Steps of a watched job as its ranks write them, with something that changes at a step, and the run of such ones."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traceq.long_runs.onsets import Onset, OnsetDetector
from traceq.long_runs.step_store import REGULAR, STEP, RowWriter, StepBlocks
from traceq.long_runs.watch_folder import FORMAT, WatchedJob, WatchFolder
from traceq.model import Arm, Manifest

__all__ = ["MS", "complete", "made_ranks", "made_rows", "onsets_of", "since", "watched_run"]

MS = 1e-3
NUM, ONSET = 1600, 800
MIB = 1 << 20


def since(step: int, value: float, num: int = NUM) -> NDArray[np.float64]:
    """A value that is added from a step on."""
    return value * (np.arange(num) >= step)


def made_rows(num: int = NUM, seed: int = 0, **columns: ArrayLike) -> NDArray[np.void]:
    """Rows of one rank: forward 6 ms with 1 % of noise, backward 3 ms; `columns` are added to these."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(num, STEP)
    rows["step"], rows["flags"] = np.arange(num), REGULAR
    rows["forward"] = 6 * MS * (1 + 0.01 * rng.normal(size=num))
    rows["cpu"], rows["backward"], rows["memory"], rows["queued"] = rows["forward"], 3 * MS, 300 * MIB, 0.0
    rows["clock"] = 1980e6
    for name, added in columns.items():
        rows[name] += added
    rows["wall"] += rows["forward"] + rows["backward"] + rows["loader"] + rows["gc"]
    rows["time"] = 1e9 + np.cumsum(rows["wall"])
    return rows


def made_ranks(*columns: dict[str, ArrayLike]) -> list[NDArray[np.void]]:
    """Rows of synchronous ranks: each waits in backward for the slowest."""
    ranks = [made_rows(seed=rank, **of_rank) for rank, of_rank in enumerate(columns)]
    wall = np.max([rows["wall"] for rows in ranks], axis=0)
    for rows in ranks:
        rows["backward"] += wall - rows["wall"]
        rows["wall"] = wall
    return ranks


def onsets_of(ranks: list[NDArray[np.void]]) -> list[Onset]:
    """What a watch says of these rows."""
    detector = OnsetDetector()
    return [onset for block in StepBlocks(len(ranks)).add(ranks) if (onset := detector.add(block))]


def watched_run(path: Path, ranks: list[NDArray[np.void]]) -> WatchFolder:
    """A run in which these rows were written."""
    folder = WatchFolder(path)
    path.mkdir(exist_ok=True)
    folder.write_job(
        WatchedJob(
            FORMAT,
            ("a",) * len(ranks),
            "batch, backward (6 of 6 alike)",
            "",
            ("python", "train.py"),
        )
    )
    for rank, rows in enumerate(ranks):
        with closing(RowWriter(folder.steps, rank)) as writer:
            writer.append(rows)
    return folder


def complete(folder: WatchFolder, name: str, status: str = "complete") -> None:
    """Let a capture be complete, or in another state."""
    arm = Arm("run", "the job as it is", baseline=True)
    manifest = Manifest(1, name, "", "", {}, (arm,), (), 2, 0, status)
    folder.captured(name).write_manifest(manifest)
