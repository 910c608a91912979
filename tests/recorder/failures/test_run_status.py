"""A manifest says why its recording ended; a disk that refuses it hides nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from traceq.model import Arm, Manifest
from traceq.recorder.failures.run_status import mark_ended
from traceq.runs.run_folder import RunFolder

MANIFEST = Manifest(1, "id", "recipe", "?", {}, (Arm("off", "before", baseline=True),), (), num_ranks=2, seed=0)


def test_a_recording_that_ended_says_why(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest(replace(MANIFEST, status="recording"))
    mark_ended(folder, "failed", "rank 1: lost")
    assert (folder.read_manifest().status, folder.read_manifest().fault) == ("failed", "rank 1: lost")


def test_a_complete_recording_stays_complete(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest(replace(MANIFEST, status="complete"))
    mark_ended(folder, "failed", "rank 1: lost")
    assert folder.read_manifest().status == "complete"


def test_a_disk_that_refuses_the_manifest_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    folder = RunFolder(tmp_path)
    folder.write_manifest(replace(MANIFEST, status="recording"))
    monkeypatch.setattr(Path, "write_bytes", refuse)
    mark_ended(folder, "failed", "rank 1: lost")
    assert folder.read_manifest().status == "recording"
    mark_ended(RunFolder(tmp_path / "absent"), "failed", "rank 1: lost")
