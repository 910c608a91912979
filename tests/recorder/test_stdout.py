"""A full disk behind stdout ends a command with one line, whatever it was writing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
MAIN = [sys.executable, "-c", "from traceq.cli import main; main()"]


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has one")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["recipes"], ["recipes", "outlier_ab"]])
def test_a_full_disk_behind_stdout_is_one_line(words: list[str], unbuffered: str) -> None:
    environment = {"PYTHONUNBUFFERED": unbuffered}
    with FULL.open("w") as full:
        done = subprocess.run(
            [*MAIN, *words], stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("traceq: stdout: No space left ")
