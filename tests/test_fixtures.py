"""The run in fixtures/outlier_ab: what this project records is what it reads, down to the line and the parameter."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
from oracle import answer
from paths import FIXTURES
from typer.testing import CliRunner

import traceq
from traceq.analysis.registry import analyze
from traceq.cli import app
from traceq.compare.diff import diff, diff_run
from traceq.facts.events.nesting import python_frames
from traceq.kineto.read import read_trace
from traceq.report import Cell, Table

RUN = FIXTURES / "outlier_ab"
CHECK = "outliers.py:18 outlier_seen"


def rows(table: Table) -> list[dict[str, Cell]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def syncs_in_forward(arm: str) -> list[dict[str, Cell]]:
    table, _ = analyze(traceq.read(RUN / arm), "syncs").tables
    return [row for row in rows(table) if row["phase"] == "forward"]


def test_the_check_reads_one_value_a_step_on_every_rank_at_its_line() -> None:
    result = [(row["rank"], row["kind"], row["num"], row["line"]) for row in syncs_in_forward("on")]
    assert result == [(0, "scalar", 2, CHECK), (1, "scalar", 2, CHECK)]


@pytest.mark.parametrize("arm", ["off", "absent"])
def test_the_switched_off_check_reads_nothing(arm: str) -> None:
    assert syncs_in_forward(arm) == []


def test_the_metrics_are_read_five_times_a_step_after_the_step() -> None:
    table, _ = analyze(traceq.read(RUN / "off"), "syncs").tables
    assert {(row["rank"], row["phase"], row["num"]) for row in rows(table)} == {
        (0, "sync_gather", 10),
        (1, "sync_gather", 10),
    }


def test_all_reduced_bytes_are_the_parameters() -> None:
    run = traceq.read(RUN / "off")
    assert run.manifest is not None
    num_parameters = run.manifest.environment["num_parameters"]
    assert isinstance(num_parameters, int)
    table, _ = analyze(run, "collectives").tables
    reduced = {
        row["rank"]: row["bytes"] for row in rows(table) if row["name"] == "all_reduce" and row["phase"] == "bwd"
    }
    assert reduced == {0: 2 * 4 * num_parameters, 1: 2 * 4 * num_parameters}


def test_off_adds_no_op() -> None:
    statements = [result.free for result in diff_run(RUN).diffs if result.free is not None]
    assert [(each.code, each.measures["phase"], each.measures["reads_mean"]) for each in statements] == [
        ("free", "forward", 0.0)
    ] * len(diff_run(RUN).diffs)


def test_on_adds_ops_of_the_check() -> None:
    from traceq.compare.work_statements import added_ops
    from traceq.facts.ranks.job import ranks_in_memory

    on, absent = (ranks_in_memory(traceq.read(RUN / name)) for name in ("on", "absent"))
    statement = added_ops(on, absent, "forward")
    assert statement is not None
    assert statement.code == "not_free"
    assert float(statement.measures["added_mean"]) > 0


def test_the_diff_names_the_check_and_nothing_else_as_added() -> None:
    result = diff(RUN / "off", RUN / "on")
    added = {cause.name: cause.delta_num for cause in result.causes if cause.delta_num > 0}
    assert {cause.line for cause in result.causes if cause.delta_num} == {CHECK, "outliers.py:17 outlier_seen"}
    assert added["aten::is_nonzero"] == 1
    assert [cause.kind for cause in result.causes if cause.name == "aten::is_nonzero"] == ["sync"]
    assert result.residual_ns == 0


def test_two_copied_files_give_the_verdict_of_the_run() -> None:
    of_files = diff(RUN / "off" / "rank0.json.gz", RUN / "on" / "rank0.json.gz").comparison
    of_run = next(result for result in diff_run(RUN).diffs if result.b_name == "on").comparison
    assert of_files is not None
    assert of_files == of_run
    assert of_files.num_pairs == 32


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=[pytest.mark.slow] * (number > 0))
        for number, path in enumerate(sorted(RUN.rglob("rank?.json.gz")))
    ],
)
def test_the_partition_agrees_with_the_slow_oracle(path: Path) -> None:
    shown = json.loads(CliRunner().invoke(app, ["show", "--json", str(path)]).stdout)
    expected = answer(path)
    assert [step["window_ns"] for step in shown["steps"]] == [step["window_ns"] for step in expected["steps"]]
    by_category: dict[str, int] = {}
    for cell in shown["partition"]:
        by_category[cell["category"]] = by_category.get(cell["category"], 0) + cell["dur_ns"]
    assert sum(by_category.values()) == sum(step["window_ns"] for step in shown["steps"])
    assert by_category["exposed_comm"] > 0
    calls = dict.fromkeys(expected["collectives"]["calls"], 0)
    for row in shown["collectives"]:
        calls[row["name"]] += row["num"]
    assert calls == expected["collectives"]["calls"]


def test_a_window_with_stacks_knows_python_frames() -> None:
    trace = read_trace(RUN / "on" / "rank0.stacks.json.gz")
    assert sum(len(frames.rows) for frames in python_frames(trace).values()) > 1000


def test_a_run_cut_short_while_it_was_timed_is_shown_and_called_incomplete(tmp_path: Path) -> None:
    manifest = (RUN / "run.json").read_text().replace('"status": "complete"', '"status": "recording"')
    (tmp_path / "run.json").write_text(manifest)
    shutil.copytree(RUN / "steps", tmp_path / "steps")
    result = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert result.exit_code == 0
    assert re.search(r"^off, on +32 ", result.stdout, re.MULTILINE)
    assert "the recording is incomplete (recording)" in result.stderr
    shown = json.loads(CliRunner().invoke(app, ["show", "--json", str(tmp_path)]).stdout)
    assert (shown["steps"], shown["coverage"]["num_gpu_events"]) == ([], 0)
    assert [warning["code"] for warning in shown["warnings"]] == ["incomplete_run"]


def test_the_example_is_what_its_script_plays() -> None:
    folder = RUN.parent / "example"
    played = runpy.run_path(str(RUN.parent / "example.py"))["traces"]()
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("*/*")} == played


def test_the_kinds_of_program_are_what_their_script_makes() -> None:
    made = {path: make() for path, make in runpy.run_path(str(RUN.parent / "kinds.py"))["TRACES"].items()}
    folder = RUN.parent / "kinds"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in files} == made
