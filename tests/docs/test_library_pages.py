"""The pages on the library: every example runs and prints what it says; the notebook runs and shows what it says."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from golden_files import UPDATE
from paths import DOCS, ROOT

import traceq

NOTEBOOK = DOCS / "notebook.ipynb"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
for cell in notebook.cells:
    cell.metadata = {}
nbformat.write(notebook, sys.argv[3])
"""


def run_examples(text: str, name: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    assert test.examples
    reports: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test, out=reports.append).failed == 0, "".join(reports)


@pytest.mark.slow
def test_every_example_of_the_page_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="an example makes a data frame")
    monkeypatch.chdir(ROOT)
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert re.findall(r"```(\w+)", page) == ["pycon"] * page.count("```pycon")
    run_examples("\n".join(re.findall(r"```pycon\n(.*?)```", page, flags=re.DOTALL)), "api.md")


def test_the_examples_of_the_package_print_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run_examples(traceq.__doc__ or "", "traceq")


def test_the_page_documents_every_export() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: traceq\.(\w+)$", page, flags=re.MULTILINE)) == set(traceq.__all__) - {"__version__"}


def outputs(notebook: Path) -> list[object]:
    """What the cells show, without what differs from run to run."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [[output.get("data") or output for output in cell.get("outputs", ())] for cell in cells]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(find_spec, ("nbclient", "nbformat", "ipykernel", "pandas"))), reason="no notebook can be run here"
)
def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    target = NOTEBOOK if UPDATE else tmp_path / "notebook.ipynb"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path), "JUPYTER_PLATFORM_DIRS": "1"}
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(DOCS), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert outputs(target) == outputs(NOTEBOOK)
    shown = json.dumps(outputs(target))
    assert all(text in shown for text in ("text/html", "outlier_seen", "<details>", "on against off"))
