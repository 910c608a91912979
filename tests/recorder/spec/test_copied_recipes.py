"""A recipe is a file that can be copied elsewhere, changed and recorded: it needs nothing beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from terminal import PROGRAM

from traceq.recorder.spec.catalogue import built_in_recipes, find_recipe

RECIPES = ROOT / "recipes"


@pytest.fixture
def unchanged_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What loading a file adds to sys.path and sys.modules goes with the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("traceq_recipe_"):
            del sys.modules[name]


@pytest.mark.usefixtures("unchanged_imports")
@pytest.mark.parametrize("name", built_in_recipes())
def test_a_copy_is_the_recipe_that_was_copied(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"my_{name}.py"
    shutil.copy(RECIPES / f"{name}.py", copy)
    copied, original = find_recipe(str(copy)), find_recipe(name)
    assert (copied.name, copied.reference) == (f"my_{name}", str(copy))
    assert (copied.text, copied.parameters) == (original.text, original.parameters)
    assert (copied.recipe.arms, copied.recipe.phases) == (original.recipe.arms, original.recipe.phases)


@pytest.mark.torch
@pytest.mark.slow
def test_a_copy_is_recorded_from_any_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    shutil.copy(RECIPES / "step_profile.py", tmp_path / "yours.py")
    options = ["--ranks", "1", "--device", "cpu", "--steps", "0", "--trace-steps", "1", "--out", "run"]
    command = [sys.executable, "-c", PROGRAM, "record", "--recipe", "yours.py", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (manifest["recipe"], manifest["status"]) == ("yours", "complete")
