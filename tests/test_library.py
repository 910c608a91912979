"""The library: what `import traceq` offers, what its results look like, and that it leaves the process as it is."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builder import op, step, write
from paths import FIXTURES, ROOT
from terminal import traceq as terminal

import traceq
from traceq.claims.claim import Claim
from traceq.model import Caveat
from traceq.report import Column, Report, Table
from traceq.units import Unit

RUN = FIXTURES / "outlier_ab"


def python(program: str, *arguments: str | Path) -> str:
    """What a program prints, in a separate process."""
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    environment = dict(os.environ)  # readline adds COLUMNS to what a process inherits unless told otherwise
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """One result of each kind."""
    run = traceq.read(RUN / "on")
    sheet, diffs = traceq.analyze(run), traceq.diff(RUN)
    report = sheet.report("syncs")
    results = {"run": run, "trace": run.traces[0], "events": run.traces[0].events, "sheet": sheet, "report": report}
    return {**results, "table": report.table("syncs"), "diffs": diffs, "diff": diffs.diffs[0]}


def test_what_is_exported_is_listed_typed_and_there() -> None:
    program = "import sys, traceq; print(*dir(traceq)); print('numpy' in sys.modules, 'rich' in sys.modules)"
    listed, imported = python(program).splitlines()
    assert imported == "False False"
    assert {name for name in listed.split() if not name.startswith("__")} == set(traceq.__all__) - {"__version__"}
    assert all(hasattr(traceq, name) for name in traceq.__all__)
    source = ast.parse((ROOT / "traceq" / "__init__.py").read_text(encoding="utf-8"))
    [typed] = [node for node in source.body if isinstance(node, ast.If)]
    homes = {
        alias.name: f"traceq.{traceq._HOMES[alias.name]}"
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module == f"traceq.{traceq._HOMES[alias.name]}"
    }
    assert set(homes) == set(traceq.__all__) - {"__version__"}


def test_all_can_be_imported_without_torch_and_recording_says_what_to_install() -> None:
    program = """
import sys
sys.modules["torch"] = None
from traceq import *
try: record()
except TraceqError as fault: print(fault)
"""
    assert python(program) == "recording needs torch: pip install 'traceq-torch[record]'\n"


def test_every_error_is_exported() -> None:
    errors = {error.__name__ for error in traceq.TraceqError.__subclasses__() if error.__module__ == "traceq.errors"}
    assert errors | {"TraceqError"} <= set(traceq.__all__)


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [
        "pass",
        "import traceq.compare.diff, traceq.analysis.registry, traceq.runs.read, traceq.library",
        "from traceq.compare.diff import diff",
        "traceq.diff, traceq.analyses, traceq.read",
        "import traceq.plugins, traceq.cli",
    ],
)
def test_functions_are_functions_whatever_was_imported_before(before: str) -> None:
    check = "all(inspect.isfunction(getattr(traceq, name)) for name in ('read', 'analyze', 'analyses', 'diff'))"
    program = f"import inspect, sys, traceq; {before}; print({check}, traceq.diff(*sys.argv[1:]).b_name)"
    assert python(program, RUN / "off", RUN / "on") == "True on\n"


def test_no_module_has_the_name_of_an_export() -> None:
    assert {module.name for module in pkgutil.iter_modules(traceq.__path__)} & set(traceq.__all__) == set()


@pytest.mark.slow
def test_a_type_checker_knows_the_results(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "use.py").write_text(
        "import traceq\n"
        "diff: traceq.Diff = traceq.diff('a', 'b')\n"
        "diffs: traceq.Diffs = traceq.diff('a')\n"
        "sheet: traceq.Sheet = traceq.analyze(traceq.read('a'))\n"
        "report: traceq.Report = traceq.analyze('a', 'syncs')\n"
        "names: dict[str, str] = traceq.analyses()\n"
        "verdict: traceq.Verdict | None = diff.comparison.verdict if diff.comparison else None\n"
        "cause: traceq.Cause = diff.causes[0]\n"
        "wrong: int = traceq.diff('a')\n"
    )
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *options, "use.py"]  # `make lint` has filled the cache
    environment = {"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()[:-1]] == ["use.py:9"], done.stdout


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'shwo'"):
        traceq.shwo  # noqa: B018


@pytest.mark.slow
def test_printed_it_is_what_the_terminal_shows() -> None:
    program = "import sys, traceq; print(traceq.diff(sys.argv[1])); print(traceq.analyze(sys.argv[1] + '/on'))"
    assert python(program, RUN) == terminal("diff", RUN).out + terminal("show", RUN / "on").out


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["60", "100"])
def test_printed_it_is_as_wide_as_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = str(traceq.diff(RUN / "off", RUN / "on"))
    assert "\x1b" not in shown
    monkeypatch.delenv("FORCE_COLOR")
    assert f"{shown}\n" == terminal("diff", RUN / "off", RUN / "on").out


@pytest.mark.slow
def test_a_repr_fits_in_a_few_lines(results: dict[str, Any]) -> None:
    for kind, result in results.items():
        lines = repr(result).splitlines()
        assert len(lines) <= 10, kind
        assert max(map(len, lines)) < 250, kind
        assert kind in lines[0].lower(), kind
    assert repr(results["run"]).startswith(f"<Run {RUN / 'on'}: arm on, ranks 0-1, ")


def test_a_diff_against_itself_is_no_wall_of_text(results: dict[str, Any]) -> None:
    assert len(repr(results["diffs"])) < 1_000
    assert len(repr(traceq.diff(RUN / "on", RUN / "on"))) < 500


def test_reports_print_findings_and_tables(results: dict[str, Any]) -> None:
    text = str(results["report"])
    assert "outliers.py:18 outlier_seen" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    for line in text.splitlines()[:6]:
        assert line in terminal("show", RUN / "on", "--only", "syncs").out
    assert {"key", "rank", "line"} <= set(str(results["table"]).split())


def test_a_notebook_shows_every_result_as_html(results: dict[str, Any]) -> None:
    for kind in ("sheet", "report", "table", "diffs", "diff"):
        html = results[kind]._repr_html_()
        assert html.startswith("<"), kind
        assert html.count("<table>") == html.count("</table>") > 0, kind
        assert "<script" not in html
    assert results["diffs"].diffs[0].answer.lead in results["diffs"]._repr_html_()


def test_html_escapes_what_a_trace_says() -> None:
    table = Table(
        "kernels", "Kernels", (Column("name", "name"), Column("ns", "time", Unit.NS)), (("</td><script>", 1500),)
    )
    finding, caveat = Claim("x", lead="<b>", severity="low"), Caveat("x", "<i>")
    html = Report("kernels", views=(table,), findings=(finding,), caveats=(caveat,))._repr_html_()
    assert "&lt;/td&gt;&lt;script&gt;</td>" in html
    assert ">1.50 us</td>" in html
    assert "<li>&lt;b&gt;</li>" in html
    assert "<i>&lt;i&gt;</i>" in html


def test_a_path_a_url_and_a_run_are_analysed_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", step(0, 100), op("aten::mm", 10, 20))
    texts = {str(traceq.analyze(source, "host")) for source in (path, str(path), traceq.read(path), path.as_uri())}
    assert len(texts) == 1
    assert str(traceq.analyze(path)).replace("\n", "") == terminal("show", path).out.replace("\n", "")


def test_analyze_names_what_there_is() -> None:
    with pytest.raises(traceq.UsageFault, match="did you mean 'syncs'"):
        traceq.analyze(RUN / "on", "sync")
    sheet = traceq.analyze(RUN / "on")
    with pytest.raises(traceq.UsageFault, match="no report 'sync'; choose from "):
        sheet.report("sync")
    with pytest.raises(traceq.UsageFault, match="table 'sync'; choose from syncs"):
        sheet.report("syncs").table("sync")


def test_analyses_lists_every_analysis_with_a_line() -> None:
    analyses = traceq.analyses()
    assert list(analyses)[:3] == ["arms", "batches", "unprofiled"]
    lines = repr(analyses).splitlines()
    assert [line.split()[0] for line in lines] == list(analyses)
    assert all(question and "\n" not in question for question in analyses.values())
    assert len({line.index(question) for line, question in zip(lines, analyses.values(), strict=True)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "on", "on/rank0.json.gz"])
def test_a_run_that_was_read_is_compared_with_all_its_arms(part: str) -> None:
    assert [diff.b_name for diff in traceq.diff(traceq.read(RUN / part)).diffs] == ["on", "deferred"]


def test_a_trace_alone_is_compared_with_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", step(0, 100))
    for source in (path, traceq.read(path)):
        with pytest.raises(traceq.UsageFault, match="not a recorded run; expected one"):
            traceq.diff(source)


@pytest.mark.slow
def test_every_table_is_dicts_a_frame_and_an_arrow_table(results: dict[str, Any]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    num = 0
    for report in results["sheet"].reports:
        for table in report.tables:
            rows, keys = table.to_dicts(), [column.key for column in table.columns]
            frame, arrow = table.to_pandas(), table.to_arrow()
            assert (len(rows), list(frame.columns), arrow.column_names) == (len(table.rows), keys, keys)
            assert arrow.to_pylist() == rows
            assert len(frame) == len(rows)
            num += 1
    assert num > 30
    shown = json.loads(terminal("show", "--json", "--only", "syncs", RUN / "on").out)
    assert results["table"].to_dicts() == shown["syncs"]


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    method: str, package: str, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(traceq.TraceqError, match=f"^{package} is not installed: pip install {package}$"):
        getattr(results["table"], method)()


STATE = """
import gc, locale, multiprocessing, os, shutil, signal, sys, tempfile, threading, warnings
from pathlib import Path
import numpy as np, pandas, pyarrow
import traceq
from traceq.engines import analyze_path, process_tuning

def refuse(*_): raise AssertionError("the process was tuned")
process_tuning.tune_process = process_tuning.keep_freed_memory = process_tuning.collect_rarely = refuse
process_tuning.raise_mmap_threshold = refuse
analyze_path.analyze_path.__kwdefaults__["small"] = -1  # as a folder of many ranks

def state():
    tasks = Path("/proc/self/task")
    return {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings": list(warnings.filters),
        "numpy": (np.geterr(), np.get_printoptions()),
        "path": list(sys.path),
        "hooks": (sys.excepthook, sys.displayhook, sys.getrecursionlimit(), sys.getswitchinterval()),
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "threads": (threading.enumerate(), len(list(tasks.iterdir())) if tasks.exists() else 1),
        "processes": multiprocessing.active_children(),
        "trace": (sys.gettrace(), sys.getprofile()),
    }

before = state()
with tempfile.TemporaryDirectory() as folder:
    shutil.copytree(sys.argv[1], folder, dirs_exist_ok=True)
    run = traceq.read(Path(folder, "on"))
    sheet = traceq.analyze(Path(folder, "on"))
    print(len(sheet.reports), len(str(sheet)) > 1000, len(sheet._repr_html_()) > 1000)
    print(len(traceq.analyze(run).reports), len(str(traceq.diff(folder))) > 1000, len(traceq.analyses()))
    sheet.report("syncs").table("syncs").to_pandas()
print([name for name, value in state().items() if value != before[name]], "torch" in sys.modules)
"""


@pytest.mark.slow
def test_library_calls_leave_the_process_as_it_is() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    num = len(traceq.analyses())
    assert python(STATE, RUN).splitlines() == [f"{num} True True", f"{num} True {num}", "[] False"]
