"""What commands do not import: torch where nothing is recorded, and what other commands need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builder import op, step, write
from terminal import PROGRAM

from traceq.commands import SUMMARIES

UNUSED = ("torch", "pandas", "matplotlib")
"""Never needed to read a trace."""

HELP = (*UNUSED, "numpy", "traceq.model", "traceq.analysis", "traceq.runs", "traceq.recorder")

OF_OTHERS = (
    "traceq.compare",
    "traceq.recorder",
    "traceq.snapshots",
    "traceq.renderers.html",
    "traceq.renderers.perfetto",
)
"""What a report on one clean trace, as text or JSON, does without."""


def imported(program: str, *arguments: str) -> set[str]:
    """Modules that a program loads, besides those that Python has loaded when it begins."""
    report = "atexit.register(lambda: print(json.dumps(sorted(sys.modules.keys() - before)), file=sys.stderr))"
    start = f"import sys; before = set(sys.modules); import atexit, json; {report}; {program}"
    done = subprocess.run([sys.executable, "-c", start, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    return set(json.loads(done.stderr))


def test_help_imports_no_command() -> None:
    modules = imported(PROGRAM, "--help")
    assert {each for each in SUMMARIES if f"traceq.commands.{each}" in modules} == set()
    assert modules & set(HELP) == set()


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_report_on_a_trace_imports_what_it_needs(form: list[str], tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    write(file, step(0, 10), op("aten::mm", 1, 2))
    modules = imported(PROGRAM, "show", *form, str(file))
    assert modules & {*UNUSED, *OF_OTHERS} == set()


def test_the_library_is_imported_when_it_is_used() -> None:
    assert {name for name in imported("import traceq") if name.startswith("traceq.")} == set()
