"""A run's manifest survives the disk, and a damaged one is told with what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceq.errors import UnreadableInput
from traceq.model import Arm, Manifest
from traceq.runs.run_folder import FORMAT, RunFolder, atomic_write

MANIFEST = Manifest(
    version=FORMAT,
    run_id="outlier_ab-1",
    recipe="outlier_ab",
    question='does "it" cost — much?',
    parameters={"size": "tiny", "batch_size": 4, "threshold": 10.0, "fused": True},
    arms=(Arm("off", "baseline", baseline=True), Arm("absent", "reference", timed=False)),
    phases=("forward", "bwd"),
    num_ranks=2,
    seed=7,
    environment={"torch": "2.13.0", "num_cores": 2},
)


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest(MANIFEST)
    assert folder.read_manifest() == MANIFEST
    assert folder.read_manifest().baseline == "off"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UnreadableInput, match=r"run\.json: .*; expected the manifest"):
        RunFolder(tmp_path).read_manifest()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest(MANIFEST)
    text = folder.manifest_path.read_text().replace('"version": 1', '"version": 99')
    folder.manifest_path.write_text(text)
    with pytest.raises(UnreadableInput, match="format 99"):
        folder.read_manifest()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(TypeError), atomic_write(path) as part:
        part.write_bytes(b"ne" + None)  # type: ignore[operator]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
