"""The command line before a command runs: its help, misuse, and an interrupt."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from golden_files import check_golden
from paths import FIXTURES
from terminal import PROGRAM, traceq

from traceq.commands import SUMMARIES
from traceq.commands.history import SUBCOMMANDS


@pytest.mark.pinned
def test_help_of_every_command_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands = [[], *([name] for name in SUMMARIES), *(["history", name] for name in SUBCOMMANDS)]
    shown = [(words, traceq(*words)) for words in ([*command, "--help"] for command in commands)]
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
        (["shw"], "'shw'. Did you mean 'show'"),
        (["qqqq"], "'qqqq'.$"),
        (["show"], "Missing argument 'PATH"),
        (["export", "x"], "Missing option '--to'"),
        (["show", "x", "--only"], "'--only' requires an argument"),
        (["show", "x", "--step", "1.5"], "'--step': .* integer"),
        (["show", "x", "--width", "10"], "'--width': .* 40"),
        (["record", "--then", "x"], "'--then': .*'stop', 'continue'"),
    ],
)
def test_misuse_is_one_error_and_exit_code_2(words: list[str], error: str) -> None:
    outcome = traceq(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert re.match(f"Error: .*{error}", outcome.err.splitlines()[-1])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("duckdb", ["query", str(FIXTURES / "example" / "job"), "from syncs"]),
        ("pyarrow", ["export", str(FIXTURES / "example" / "job"), "--to", "parquet", "-o", "tables"]),
        ("fsspec", ["show", "s3://bucket/trace.json"]),
        ("mcp", ["mcp"]),
    ],
)
def test_a_missing_package_is_one_line_and_exit_code_1(
    module: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    outcome = traceq(*words)
    assert (outcome.code, outcome.out) == (1, "")
    assert re.fullmatch(r"traceq: .*: pip install \S+\n", outcome.err)


def test_an_interrupt_is_exit_code_130_without_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.commands.check.analyze_path", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    outcome = traceq("check", tmp_path, "--rule", "dtoh == 0")
    assert (outcome.code, outcome.out, outcome.err) == (128 + signal.SIGINT, "", "")


ENDINGS = (
    (["--help"], 0, "Usage"),
    (["show", "no such trace"], 1, "no such file"),
    (["shw"], 2, "Did you mean 'show'?"),
)


@pytest.mark.parametrize(("words", "code", "text"), ENDINGS)
def test_a_process_ends_with_the_code_of_its_command_and_calls_what_is_registered(
    words: list[str], code: int, text: str
) -> None:
    program = f"import atexit; atexit.register(print, 'END'); {PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True)
    assert done.stdout.endswith("END\n")


def test_what_measures_a_process_writes_its_result(tmp_path: Path) -> None:
    program, result = tmp_path / "program.py", tmp_path / "result"
    program.write_text(PROGRAM)
    measured = [sys.executable, "-m", "cProfile", "-o", str(result), str(program), "--help"]
    assert subprocess.run(measured, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert result.stat().st_size > 0
