"""Files that are no regular ones are refused and never waited for; lines and names without end take little."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from builder import op, step, write
from paths import FIXTURES
from terminal import shell

from traceq.kineto.read import read_trace
from traceq.locations import open_binary, read_whole
from traceq.model import Category
from traceq.runs.step_log import read_lines


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "folder"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    path = Path("/dev/zero") if kind == "device" else path
    for read in (read_whole, open_binary):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read(path)


@pytest.mark.parametrize("name", ["rank0.json.gz", "rank0.flight.json", "run.json", "steps/rank0.jsonl"])
def test_a_folder_with_a_pipe_in_it_is_shown_or_refused_at_once(name: str, tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(FIXTURES / ("outlier_ab" if name.startswith(("run", "steps")) else "example/job"), job)
    (job / name).unlink(missing_ok=True)
    os.mkfifo(job / name)
    done = shell(f"timeout 60 $TRACEQ show {job}")
    assert done.code in (0, 1), done.err
    assert "Traceback" not in done.err


def test_a_pipe_that_the_shell_makes_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json"
    write(trace, step(0, 10), op("aten::mm", 1, 2))
    assert shell(f"cat {trace} | $TRACEQ show /dev/stdin").code == 0


def test_a_line_of_a_step_log_without_end_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl").write_bytes(b"{" * (3 << 20))
    assert list(read_lines(tmp_path / "rank0.jsonl")) == []


def test_a_name_without_end_is_cut_and_stays_apart_from_others(tmp_path: Path) -> None:
    names = ["0" * 100_000, "0" * 100_001, "aten::mm"]
    write(tmp_path / "rank0.json", step(0, 100), *(op(name, 10 * index, 5) for index, name in enumerate(names)))
    events = read_trace(tmp_path / "rank0.json").events
    read = [events.text(row) for row in events.rows(Category.CPU_OP).tolist()]
    assert [len(name) for name in read] == [4096, 4096, 8]
    assert len(set(read)) == 3
