"""What commands write: never over what they read, nor in the place of a device, a pipe or a link."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builder import kernel, launch, op, step, write
from patience import patient
from terminal import PROGRAM, Outcome, traceq

EVENTS = (step(0, 100), step(100, 100, 1), launch(5, 2, 1), kernel("gemm", 10, 30, 1), op("aten::mm", 4, 5))

WRITERS = {
    "perfetto": lambda path, target: ("export", path, "--to", "perfetto", "-o", target),
    "pair": lambda path, target: ("export", path, path, "--to", "perfetto", "-o", target),
    "show": lambda path, target: ("show", path, "--html", target),
    "diff": lambda path, target: ("diff", path, path, "--html", target),
    "check": lambda path, target: ("check", path, "--rule", "step > 0 ms", "--junit", target),
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.json", *EVENTS)


def run(kind: str, path: Path, target: Path) -> Outcome:
    return traceq(*WRITERS[kind](path, target))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("how", ["itself", "link", "hard link"])
def test_the_input_is_never_replaced(trace: Path, tmp_path: Path, kind: str, how: str) -> None:
    target, before = trace if how == "itself" else tmp_path / "target", trace.read_bytes()
    if how == "link":
        target.symlink_to(trace)
    if how == "hard link":
        target.hardlink_to(trace)
    outcome = run(kind, trace, target)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith(f"traceq: {target} is read")
    assert trace.read_bytes() == before


def test_a_rank_of_a_folder_is_never_replaced(tmp_path: Path) -> None:
    trace = write(tmp_path / "job" / "rank0.json", *EVENTS)
    before = trace.read_bytes()
    assert traceq("export", trace.parent, "--to", "perfetto", "-o", trace).code == 2
    assert trace.read_bytes() == before


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("target", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_and_stays(trace: Path, tmp_path: Path, kind: str, target: str) -> None:
    place = tmp_path / "target"
    if target == "pipe":
        os.mkfifo(place)
    elif target == "device":
        place.symlink_to("/dev/null")
    else:
        place.mkdir()
    before = place.stat()
    outcome = run(kind, trace, place)
    assert outcome.code == 1
    assert "not a regular file" in outcome.err
    assert outcome.err.count("\n") == 1
    assert (place.stat().st_ino, place.stat().st_mode) == (before.st_ino, before.st_mode)
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("kind", WRITERS)
def test_the_target_of_a_link_is_written(trace: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    real.write_text("before")
    link.symlink_to(real)
    assert run(kind, trace, link).code == 0
    assert link.is_symlink()
    assert len(real.read_bytes()) > 100


def test_tables_are_not_written_into_a_pipe(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    os.mkfifo(tmp_path / "tables" / "events.parquet")
    outcome = traceq("export", trace, "--to", "parquet", "-o", tmp_path / "tables")
    assert outcome.code == 1
    assert "not a regular file" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_open_leaves_nothing_behind_when_a_signal_ends_it(trace: Path, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary"), "SSH_CONNECTION": ""}
    as_in_a_terminal = "from signal import *; signal(SIGHUP, SIG_DFL); "  # nohup ignores it
    program = as_in_a_terminal + "import traceq.viewer; traceq.viewer.PORT = 0; " + PROGRAM
    command = [sys.executable, "-c", program, "open", str(trace), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout
            assert process.stdout.readline().startswith(b"https://ui.perfetto.dev")
            assert any((tmp_path / "temporary").iterdir())
            process.send_signal(number)
            assert process.wait(timeout=patient(20)) == (0 if number == signal.SIGINT else 128 + number)
        finally:
            process.kill()
    assert not any((tmp_path / "temporary").iterdir())
