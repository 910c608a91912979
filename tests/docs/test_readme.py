"""The README: its example runs, its commands and options exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import ROOT
from terminal import options_of

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="the example trains a model")
def test_the_loop_runs_and_its_phases_are_read_back(tmp_path: Path) -> None:
    (program,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *rows, note = done.stdout.splitlines()[2:]
    assert note.startswith("  Phases are ")
    assert [line.split()[0] for line in rows] == [
        "dataload_wait",
        "forward",
        "backward",
        "optimizer",
        "other",
    ]


def test_commands_and_options_exist() -> None:
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ traceq")]
    assert lines
    for line in lines:
        name, *rest = line.partition("#")[0].partition(" -- ")[0].split()[2:]
        assert {word for word in rest if word.startswith("--")} <= options_of(name), line


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
