"""The script of docs/tutorial.md is the one of its recordings, and its toggle is compared."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import DOCS, FIXTURES
from recording import MAIN

import traceq

(SCRIPT,) = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_script_is_the_recorded_one() -> None:
    assert (FIXTURES / "tutorial" / "train.py").read_text(encoding="utf-8") == SCRIPT


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="the script trains a model")
def test_the_toggle_of_the_page_compares_two_optimizers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    toggle = ["--toggle", "@optimizer=loop,fused", "--steps", "16", "--out", "fused"]
    command = [*MAIN, *toggle, "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (diff,) = traceq.diff(tmp_path / "fused").diffs
    assert (diff.a_name, diff.b_name) == ("optimizer=loop", "optimizer=fused")
