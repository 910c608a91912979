"""The command line before a command runs: its help, misuse, and an interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from golden_files import check_golden
from terminal import PROGRAM, traceq

from traceq.commands import SUMMARIES


@pytest.mark.pinned
def test_help_of_every_command_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = [(words, traceq(*words)) for words in (["--help"], *([name, "--help"] for name in SUMMARIES))]
    assert {outcome.code for _, outcome in shown} == {0}
    check_golden("help.txt", "\n".join(f"$ traceq {' '.join(words)}\n{outcome.out}" for words, outcome in shown))


def test_without_words_there_is_help_and_no_success() -> None:
    outcome = traceq()
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: traceq [OPTIONS] COMMAND")


@pytest.mark.pinned
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["shw"], "No such command 'shw'. Did you mean 'show'?"),
        (["qqqq"], "No such command 'qqqq'."),
        (["show"], "Missing argument 'PATH...'."),
        (["export", "x"], "Missing option '--to'."),
        (["show", "x", "--only"], "Option '--only' requires an argument."),
        (["show", "x", "--step", "1.5"], "Invalid value for '--step': Input should be a valid integer"),
        (["show", "x", "--width", "10"], "Invalid value for '--width': Input should be greater than or equal to 40"),
        (["record", "--then", "x"], "Invalid value for '--then': Value error, 'x' is not one of 'stop', 'continue'."),
    ],
)
def test_misuse_is_one_error_and_exit_code_2(words: list[str], error: str) -> None:
    outcome = traceq(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[-1].startswith(f"Error: {error}")


def test_an_interrupt_is_exit_code_130_without_a_message(tmp_path: Path) -> None:
    started = "import os, signal; from traceq.runs import read; read.read = lambda *_, **__: os.kill(os.getpid(), "
    program = f"{started}signal.SIGINT); {PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program, "check", str(tmp_path), "--rule", "dtoh == 0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


ENDINGS = (
    (["--help"], 0, "Usage"),
    (["show", "no such trace"], 1, "no such file"),
    (["shw"], 2, "Did you mean 'show'?"),
)


@pytest.mark.parametrize(("words", "code", "text"), ENDINGS)
def test_a_process_ends_with_the_code_of_its_command_and_calls_what_is_registered(
    words: list[str], code: int, text: str
) -> None:
    program = f"import atexit; atexit.register(print, 'at the end', flush=True); {PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True)
    assert done.stdout.endswith("at the end\n")


def test_what_measures_a_process_writes_its_result(tmp_path: Path) -> None:
    program, result = tmp_path / "program.py", tmp_path / "result"
    program.write_text(PROGRAM)
    measured = [sys.executable, "-m", "cProfile", "-o", str(result), str(program), "--help"]
    assert subprocess.run(measured, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert result.stat().st_size > 0
