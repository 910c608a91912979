"""Dumps of ranks that waited for each other show which collective each one issued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the recorder needs torch")

from traceq.recorder.failures.hang_diagnosis import find_desync
from traceq.runs.run_folder import RunFolder


def entry(sequence: int, name: str, size: int) -> dict[str, Any]:
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": sequence,
        "profiling_name": f"gloo:{name}",
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "time_created_ns": 10**18 + sequence,
        "retired": True,
    }


def write_dump(folder: RunFolder, rank: int, line: str, *entries: dict[str, Any]) -> None:
    path = folder.stalled(rank)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"entries": entries, "waits_at": line, "pg_config": {"0": {"ranks": "[0, 1]"}}}))


def test_the_first_differing_collective_is_reported_with_both_ranks_lines(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_dump(folder, 0, "train.py:30 step", entry(7, "all_reduce", 5), entry(8, "all_reduce", 1000))
    write_dump(folder, 1, "train.py:41 agree", entry(7, "all_reduce", 5), entry(8, "all_gather", 5))
    text = find_desync(folder)
    assert text.startswith("desync at collective 8")
    assert "rank 0: all_reduce float32 x 1,000" in text
    assert "rank 1: all_gather float32 x 5" in text
    assert "waits at train.py:30 step" in text
    assert text.endswith("waits at train.py:41 agree")


def test_ranks_that_agree_or_one_rank_alone_are_no_desync(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert find_desync(folder) == ""
    write_dump(folder, 0, "train.py:30 step", entry(7, "all_reduce", 5), entry(8, "all_reduce", 5))
    assert find_desync(folder) == ""
    write_dump(folder, 1, "train.py:41 agree", entry(7, "all_reduce", 5))
    assert find_desync(folder) == ""
