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
from pkgutil import resolve_name

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


PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
RUN_BY = {
    "README.md": "docs/test_readme.py",
    "docs/hta.md": "interop/test_hta.py",
    "docs/agents.md": "docs/test_agents_page.py",
    "docs/own-ab.md": "docs/test_own_ab.py",
    "docs/plugins.md": "test_plugins.py",
    "docs/pytest.md": "test_pytest_plugin.py",
    "docs/trainers.md": "docs/test_trainers.py",
    "docs/tutorial.md": "docs/test_tutorial.py",
    "docs/watch.md": "recorder/test_watched_loop.py",
}
"""The test that runs the Python of a page which is no session of an interpreter, or that page's own."""
NOT_RUN = {
    "docs/analyses/snapshots.md": "needs a GPU",
    "docs/perfetto.md": "needs Perfetto's trace processor, which its package downloads",
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


SESSIONS = [page for page in PAGES if blocks(page, "pycon") and name(page) not in RUN_BY]


@pytest.mark.parametrize("page", SESSIONS, ids=name)
def test_every_example_of_a_page_prints_what_it_says(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "duckdb"):
        pytest.importorskip(package, reason=f"an example needs {package}")
    monkeypatch.chdir(ROOT)
    run_examples("\n".join(blocks(page, "pycon")), page.name)


@pytest.mark.parametrize("page", RUN_BY)
def test_the_python_of_a_page_is_run_by_a_test(page: str) -> None:
    assert Path(page).name in (ROOT / "tests" / RUN_BY[page]).read_text(encoding="utf-8")


def test_no_page_has_python_that_no_test_runs() -> None:
    assert {name(page) for page in PAGES if blocks(page, "python")} <= RUN_BY.keys() | NOT_RUN.keys()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_names_in_traceq_exists(page: Path) -> None:
    """Calls outside of blocks, as `traceq.frames.ask(...)`."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for dotted in set(re.findall(r"`(traceq(?:\.\w+)+)\(", text)):
        resolve_name(dotted)


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
    not all(map(find_spec, ("nbclient", "nbformat", "ipykernel", "pandas"))), reason="no notebook kernel"
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
