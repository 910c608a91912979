"""A manifest says why its recording ended; a disk that refuses it hides nothing."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from traceq.errors import RecordingFailed
from traceq.model import Arm, Manifest
from traceq.recorder.failures.rank_errors import write_error
from traceq.recorder.failures.run_status import mark_ended, named_deletion
from traceq.recorder.timing.step_log_writer import Journal
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


@pytest.mark.parametrize("is_deleted", [True, False])
def test_what_fails_in_a_folder_that_is_gone_is_not_the_cause(is_deleted: bool, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()

    def steps() -> Generator[str, None, None]:
        with Journal(folder.samples(0)) as journal:
            journal.write(())
            yield "off"
            if is_deleted:
                shutil.rmtree(folder.path)
                journal.write(())
            raise OSError(28, "No space left on device")

    with pytest.raises(RecordingFailed if is_deleted else OSError) as caught:
        list(named_deletion(folder, steps()))
    assert str(caught.value) == (folder.deleted_text if is_deleted else "[Errno 28] No space left on device")


def test_a_folder_that_is_gone_stays_gone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    write_error(str(folder.faults), 0, ValueError("bad batch"))
    mark_ended(folder, "failed", "bad batch")
    assert not folder.path.exists()
