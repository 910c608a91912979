"""The examples of docs/own-ab.md run as they stand, and their arms are compared."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import DOCS
from recording import MAIN

import traceq

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="the examples train a model"),
]
LOOP, RECIPE = re.findall(r"```python\n(.*?)```", (DOCS / "own-ab.md").read_text(), flags=re.DOTALL)


def compared(folder: Path, command: list[str]) -> tuple[str, str]:
    """The two arms of the run that a command records into the folder `run`."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (diff,) = traceq.diff(folder / "run").diffs
    return diff.a_name, diff.b_name


@pytest.mark.slow
def test_the_loop_compares_its_two_branches(tmp_path: Path) -> None:
    assert compared(tmp_path, [sys.executable, "-c", LOOP.replace('"clip-run"', '"run"')]) == ("off", "clip")


@pytest.mark.slow
def test_the_recipe_of_25_lines_runs_on_two_ranks(tmp_path: Path) -> None:
    assert len([line for line in RECIPE.splitlines() if line]) <= 25
    (tmp_path / "clip_ab.py").write_text(RECIPE)
    options = ["--ranks", "2", "--device", "cpu", "--steps", "4"]
    command = [*MAIN[:-2], "--recipe", "clip_ab.py", "--out", "run", *options]
    assert compared(tmp_path, command) == ("off", "clip")
