"""Plugins: a package with an analysis, a recipe and a renderer, installed as a user installs it; and broken ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from paths import DOCS, FIXTURES, ROOT, TESTS
from terminal import PROGRAM, Outcome

TOY = TESTS / "support" / "toy_plugin"
RUN = FIXTURES / "outlier_ab"
BROKEN = {
    "missing": ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "fails": ("broken_on_import", "ZeroDivisionError: division by zero"),
    "empty": ("broken_empty", "lacks POSITION, summarize, merge"),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the toy package."""
    source, target = tmp_path_factory.mktemp("source") / "toy", tmp_path_factory.mktemp("site")
    shutil.copytree(TOY, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages whose plugins cannot be loaded, or fail when they are called."""
    site = tmp_path_factory.mktemp("broken")
    (site / "broken_on_import.py").write_text("1 / 0\n")
    (site / "broken_empty.py").write_text('"""Nothing."""\n')
    (site / "broken_later.py").write_text(
        '"""Does it fail?"""\nPOSITION = 91\n'
        "def summarize(trace): return 0\n"
        "def merge(job, parts): raise KeyError('toy')\n"
        "def write_sheet(sheet, file, options): raise ValueError('no form')\n"
    )
    for name, (module, _) in {**BROKEN, "later": ("broken_later", "")}.items():
        info = site / f"broken_{name}-2.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: broken-{name}\nVersion: 2.1\n")
        groups = ("analyses", "renderers") if name == "later" else ("analyses", "recipes", "renderers")
        lines = [f"[traceq.{group}]\n{name} = {module}\n" for group in groups]
        (info / "entry_points.txt").write_text("\n".join(lines))
    return site


def traceq(*arguments: str | Path, site: Path, cwd: Path | None = None) -> Outcome:
    """Run a command in a process that finds what is installed in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "TRACEQ_CACHE": "0"}
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd, timeout=120)
    return Outcome(done.returncode, done.stdout, done.stderr)


def traceq_each(commands: Sequence[tuple[str | Path, ...]], site: Path, cwd: Path | None = None) -> list[Outcome]:
    """Run commands one after the other in one process, as starting one takes longer than most commands."""
    program = (
        "import json, sys; from dataclasses import asdict; from terminal import traceq; "
        "print(json.dumps([asdict(traceq(*words)) for words in json.load(sys.stdin)]))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT), str(TESTS / "support")]),
        "TRACEQ_CACHE": "0",
    }
    command, words = [sys.executable, "-c", program], json.dumps([list(map(str, words)) for words in commands])
    done = subprocess.run(command, input=words, capture_output=True, text=True, check=True, env=environment, cwd=cwd)
    return [Outcome(**outcome) for outcome in json.loads(done.stdout)]


def test_an_installed_analysis_is_shown_like_any_other(installed: Path) -> None:
    done, text = traceq_each(
        [("show", "--only", "toy", "--json", RUN / "on"), ("show", "--full", RUN / "on")], installed
    )
    assert (done.code, done.err) == (0, "")
    shown = json.loads(done.out)
    assert [row["rank"] for row in shown["toy"]] == [0, 1]
    assert sum(row["num_events"] for row in shown["toy"]) == shown["source"]["num_events"]
    assert (text.code, "plugin" in text.err) == (0, False)
    table = text.out[text.out.index("\nEvents\n") :].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["rank", "0", "1"]


@pytest.mark.slow
def test_an_installed_analysis_reads_ranks_in_other_processes_too(installed: Path) -> None:
    here = traceq("show", "--only", "toy", "--json", RUN / "on", site=installed)
    program = "from traceq.engines import analyze_path; analyze_path.SMALL = -1; " + PROGRAM
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)]), "TRACEQ_CACHE": "0"}
    command = [sys.executable, "-c", program, "show", "--only", "toy", "--json", str(RUN / "on")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert (done.returncode, done.stdout) == (0, here.out), done.stderr


@pytest.mark.slow
def test_an_installed_recipe_is_listed_and_described(installed: Path) -> None:
    listed, described = traceq_each([("recipes",), ("recipes", "toy")], installed)
    assert (listed.code, listed.err) == (0, "")
    name, question = listed.out.splitlines()[-1].split(maxsplit=1)
    assert (name, question.endswith("one more addition cost a step?")) == ("toy", True)
    assert "size=64" in described.out


@pytest.mark.torch
@pytest.mark.slow
def test_an_installed_recipe_is_recorded(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    options = ("--ranks", "1", "--device", "cpu", "--steps", "16", "--trace-steps", "1", "--out", "run")
    done = traceq("record", "--recipe", "toy", *options, site=installed, cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"] == "toy"


@pytest.mark.slow
def test_an_installed_renderer_is_chosen_on_the_command_line(installed: Path, tmp_path: Path) -> None:
    commands = [(*command, "--to", "toy") for command in (("show", RUN / "on"), ("diff", RUN), ("export", RUN / "on"))]
    shown, compared, exported = traceq_each(commands, installed, cwd=tmp_path)
    assert shown.code == 0
    assert all(line.endswith(" ns") for line in shown.out.splitlines())
    assert compared.out.splitlines()[-1].startswith("deferred: ")
    assert (exported.code, exported.out) == (0, "on.tables\n")
    assert (tmp_path / "on.tables" / "steps.csv").read_text().startswith("rank,step,start_ns,dur_ns,")


@pytest.mark.slow
def test_an_unknown_renderer_is_a_usage_fault_that_lists_them(installed: Path) -> None:
    choices: dict[tuple[str | Path, ...], str] = {
        ("show", RUN / "on", "--to", "tyo"): "for reports; .* text, .* notebook, toy$",
        ("show", RUN / "on", "--to", "parquet"): "for reports; .* text, .* notebook, toy$",
        ("diff", RUN, "--to", "tyo"): "for comparisons; .* text, .* notebook, toy$",
        ("export", RUN / "on", "--to", "json"): "for runs; .* parquet, perfetto, toy$",
        ("export", RUN / "on", RUN / "off", "--to", "toy"): "toy: .* of one run",
    }
    for done, choice in zip(traceq_each(list(choices), installed), choices.values(), strict=True):
        assert (done.code, done.out) == (2, "")
        assert re.search(choice, done.err.rstrip())


@pytest.mark.slow
def test_a_broken_plugin_is_one_line_that_names_its_package(broken: Path) -> None:
    stems = (("show", RUN / "on", "--only"), ("recipes",), ("show", RUN / "on", "--only", "steps", "--to"))
    commands = [(*command, name) for command in stems for name in BROKEN]
    for (*_, name), done in zip(commands, traceq_each(commands, broken), strict=True):
        assert (done.code != 0, done.out) == (True, "")
        assert done.err.count("\n") == 1
        assert done.err.startswith("traceq: ")
        if name != "empty":
            assert done.err.startswith(f"traceq: plugin broken-{name} 2.1: traceq.")
            assert done.err.endswith(f" {name}: {BROKEN[str(name)][1]}\n")


@pytest.mark.slow
def test_broken_plugins_leave_all_else_as_it_is(broken: Path) -> None:
    commands = [("show", RUN / "on", "--only", "steps"), ("recipes",), ("diff", RUN), ("--version",)]
    whole, listed, diff, version = traceq_each(commands, broken)
    assert (whole.code, whole.err) == (0, "")
    assert listed.code == 0
    assert "outlier_ab" in listed.out
    assert sorted(line.split()[3] for line in listed.err.splitlines()) == [
        "broken-empty",
        "broken-fails",
        "broken-missing",
    ]
    assert diff.code == 0
    assert version.err == ""


def test_what_fails_while_it_runs_names_its_package_too(broken: Path) -> None:
    failing = [("show", RUN / "on", "--only", "later"), ("show", RUN / "on", "--only", "steps", "--to", "later")]
    shown, drawn = traceq_each(failing, broken)
    assert (shown.code, shown.out) == (1, "")
    for done, kind, error in ((shown, "analyses", "KeyError: 'toy'"), (drawn, "renderers", "ValueError: no form")):
        assert done.err.endswith(f" broken-later 2.1: traceq.{kind} later: {error}\n")


@pytest.mark.slow
def test_a_report_on_everything_says_what_it_lacks(broken: Path, tmp_path: Path) -> None:
    loads = tmp_path / "site"
    shutil.copytree(broken, loads, ignore=shutil.ignore_patterns("broken_later*"))
    done, as_json = traceq_each([("show", RUN / "on"), ("show", "--json", RUN / "on")], loads)
    assert done.code == 0
    assert done.out.startswith(f"{RUN / 'on'} · 2 of 2 ranks · cpu · ")
    notes = [line for line in done.err.splitlines() if "traceq: note: plugin" in line]
    assert len(notes) == len(BROKEN)
    codes = [doubt["code"] for doubt in json.loads(as_json.out)["warnings"]]
    assert codes.count("plugin") == len(BROKEN)


def test_the_protocols_are_imported_without_torch() -> None:
    program = "import sys, traceq.plugins as plugins; print(*plugins.__all__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Analysis Exporter RecipeModule RenderOptions Renderer Toggle ToggleModule False\n"


def test_the_page_shows_the_toy_package() -> None:
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    for file in ("pyproject.toml", "toy/analysis.py", "toy/recipe.py", "toy/renderer.py"):
        assert (TOY / file).read_text(encoding="utf-8") in page, file
