"""What a folder holds is known from its names where possible: each stat of a shared file system takes time."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceq.runs.sides import holds_runs


def test_a_job_of_many_ranks_is_recognized_without_asking_for_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(50):
        (tmp_path / f"rank{rank}.json").write_text("{}")
    looked_at: list[str] = []
    stat = Path.stat

    def counted(path: Path, *, follow_symlinks: bool = True) -> object:
        looked_at.append(path.name)
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", counted)
    assert not holds_runs(tmp_path)
    assert sum(name.startswith("rank") for name in looked_at) == 1


def test_a_folder_of_runs_holds_runs_unless_a_trace_is_beside_them(tmp_path: Path) -> None:
    assert not holds_runs(tmp_path)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "run.json").write_text("{}")
    assert holds_runs(tmp_path)
    assert not holds_runs(tmp_path / "first")
    (tmp_path / "rank0.json").write_text("{}")
    assert not holds_runs(tmp_path)
