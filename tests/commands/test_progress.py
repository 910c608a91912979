"""What a command shows while it works: a bar on a terminal once a second has passed, and nothing anywhere else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from builder import op, step, write
from patience import patient
from terminal import on_terminal

AT_ONCE = """
import time
from contextlib import contextmanager
import rich.progress
from traceq.commands import _output
from traceq.kineto.decompression import ByteSource
_output._AFTER_S, _output._EVERY_S = 0.0, 0.001
readinto = ByteSource.readinto
def read_slowly(source, buffer):
    time.sleep(0.1)
    return readinto(source, buffer)
open_replacing = _output.open_replacing
@contextmanager
def open_slowly(path):
    time.sleep(0.2)
    with open_replacing(path) as file:
        yield file
ByteSource.readinto, _output.open_replacing = read_slowly, open_slowly
from traceq.cli import main
main()
"""
"""The command, slow, and with a bar from its first moment on."""
DRAWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@pytest.fixture
def file(tmp_path: Path) -> str:
    write(tmp_path / "rank0.json", step(0, 1_000), *(op("aten::mm", number, number + 1) for number in range(900)))
    return str(tmp_path / "rank0.json")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_bar_says_what_is_done_and_how_far_it_is_and_is_gone_in_the_end(form: list[str], file: str) -> None:
    drawn = DRAWN.sub("", on_terminal("show", *form, file, columns=120, program=AT_ONCE, TERM="xterm", NO_COLOR="1"))
    plain = DRAWN.sub("", on_terminal("show", *form, file, columns=120, TERM="xterm", NO_COLOR="1"))
    assert re.search(r"reading rank0\.json ━+ +[0-9.]+ .?i?B of [0-9.]+ .?i?B, [0-9]+ s", drawn)
    assert drawn.rstrip().endswith(plain.strip())


def test_a_file_that_is_written_has_a_bar(file: str, tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    assert "writing" in on_terminal("show", "--html", page, file, columns=120, program=AT_ONCE, TERM="xterm")


def test_what_takes_no_second_has_no_bar(file: str) -> None:
    assert "reading" not in on_terminal("show", file, columns=120, TERM="xterm")


def test_a_pipe_gets_no_bar_however_long_it_takes(file: str) -> None:
    command = [sys.executable, "-c", AT_ONCE, "show", file]
    assert subprocess.run(command, capture_output=True, check=True, timeout=patient(60)).stderr == b""
