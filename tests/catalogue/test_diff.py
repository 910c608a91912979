"""Diffs of real traces: closed against the slow oracle, antisymmetric, and true to what is known of each pair."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from catalogue import FILES
from golden_files import check_golden
from oracle.partition import partition, without_once
from oracle.phases import Phases
from oracle.reader import read as read_slowly
from oracle.steps import windows
from oracle.syncs import find_syncs
from oracle.unrecorded import gaps, opening
from paths import TRACES
from terminal import traceq
from typer.testing import CliRunner

from traceq.analysis.registry import analyze
from traceq.cli import app
from traceq.compare.attribution import step_time
from traceq.compare.diff import diff_runs
from traceq.facts.timeline.steps import steps
from traceq.model import Run
from traceq.runs.read import read

TOO_SLOW_FOR_THE_ORACLE = ("mtia", "sam-a100-ab", "hta-diff", "owlv2", "resnet50-2021")
PAIRS = {
    "ep-moe": ("ep-moe-b200-ab/ref.json.gz", "ep-moe-b200-ab/syncless.json.gz"),
    "sam": ("sam-a100-ab/compile_false.json.gz", "sam-a100-ab/compile_true.json.gz"),
    "torchrec": ("torchrec-v100-ab/a", "torchrec-v100-ab/b"),
    "owlv2": ("owlv2/h100.json.gz", "owlv2/mi300.json.gz"),
    "hta-diff": ("hta-diff/control-a100-rank3.json.gz", "hta-diff/test-v100-rank1.json.gz"),
}
LARGE = ("sam", "hta-diff")
Row = dict[str, Any]


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in PAIRS])
def pair(request: pytest.FixtureRequest) -> tuple[str, Path, Path]:
    """(name, A, B)."""
    return (request.param, *both(request.param))


def both(name: str) -> tuple[Path, Path]:
    a, b = (TRACES / side for side in PAIRS[name])
    if not a.exists() or not b.exists():
        pytest.skip(f"no traces {' and '.join(PAIRS[name])} beside this checkout")
    return a, b


def as_json(a: Path, b: Path) -> Row:
    result = CliRunner().invoke(app, ["diff", "--json", str(a), str(b)])
    assert result.exit_code == 0, result.output
    outcome: Row = json.loads(result.stdout)
    return outcome


@pytest.mark.parametrize("path", FILES)
def test_the_cells_of_a_step_are_those_of_the_partition(path: Path) -> None:
    """Against the oracle where it takes less than two seconds, else against `show`, which another test holds to it."""
    trace = read(path).traces[0]
    counted = steps(trace).counted
    if path.relative_to(TRACES).parts[0] in TOO_SLOW_FOR_THE_ORACLE:
        expected = shown_cells(trace.rank, Run(str(path), (trace,)), counted)
    else:
        expected = oracle_cells(path, counted)
    result = {(cell.phase, cell.category): cell.ns for cell in step_time(trace).cells if cell.ns}
    shown, expected_cells = without_once(result, expected)
    assert shown == expected_cells


def oracle_cells(path: Path, counted: Any) -> Counter[tuple[str, str]]:
    trace = read_slowly(path)
    phases, syncs = Phases(trace), find_syncs(trace)
    hidden = gaps(trace)
    cells: Counter[tuple[str, str]] = Counter()
    for step, counts in zip(windows(trace, phases, opening(trace, hidden)), counted, strict=True):
        if counts:
            cells.update(partition(trace, phases, syncs, hidden, step["start_ns"], step["end_ns"]))
    return cells


def shown_cells(rank: int, run: Run, counted: Any) -> Counter[tuple[str, str]]:
    table = analyze(run, "partition").tables[0]
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    cells: Counter[tuple[str, str]] = Counter()
    numbers = next(steps(trace).number.tolist() for trace in run.traces if trace.rank == rank)
    for row in rows:
        if row["rank"] == rank and counted[numbers.index(row["step"])] and row["dur_ns"]:
            cells[row["phase"], row["category"]] += row["dur_ns"]
    return cells


def test_a_pair_is_explained_to_the_nanosecond(pair: tuple[str, Path, Path]) -> None:
    result = as_json(*pair[1:])
    assert result["residual_ns"] == 0
    delta = result["traced"]["delta_ns"]
    assert delta == result["traced"]["b_ns"] - result["traced"]["a_ns"]
    assert sum(cell["delta_ns"] for cell in result["cells"]) == delta
    assert sum(cause["delta_ns"] for cause in result["causes"]) == delta
    assert all(cause["count_ns"] + cause["dur_ns"] == cause["delta_ns"] for cause in result["causes"])
    assert sum(cell["a_ns"] for cell in result["cells"]) == result["traced"]["a_ns"]
    assert sum(cell["b_ns"] for cell in result["cells"]) == result["traced"]["b_ns"]


@pytest.mark.slow
def test_a_pair_turned_around_has_every_sign_turned(pair: tuple[str, Path, Path]) -> None:
    a, b = (read(side) for side in pair[1:])
    there, back = diff_runs(a, b), diff_runs(b, a)
    assert there.traced is not None
    assert back.traced is not None
    assert there.traced.delta_ns == -back.traced.delta_ns
    assert there.comparison is not None
    assert back.comparison is not None
    assert there.comparison.delta_ns == -back.comparison.delta_ns
    assert [(cause.key, cause.delta_num, cause.delta_ns, cause.count_ns) for cause in there.causes] == [
        (cause.key, -cause.delta_num, -cause.delta_ns, -cause.count_ns) for cause in back.causes
    ]
    same = diff_runs(a, a)
    assert (same.causes, {cell.delta_ns for cell in same.cells}) == ((), {0})


def test_twenty_removed_syncs_are_named_with_what_they_save() -> None:
    result = as_json(*both("ep-moe"))
    syncs = [cause for cause in result["causes"] if cause["kind"] == "sync"]
    assert result["causes"][0] == syncs[0]
    assert [cause["delta_num"] for cause in syncs] == [-10, -10]
    assert (result["verdict"]["state"], result["verdict"]["measures"]["num_a"]) == ("observed", 1)
    removed = result["reasons"][0]
    assert (removed["code"], removed["measures"]["removed_syncs_mean"]) == ("syncs", 20)
    assert removed["measures"]["delta_ns"] == sum(cause["delta_ns"] for cause in syncs) < -2_800_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("owlv2", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X VF"),
        ("hta-diff", "NVIDIA A100-PG509-200", "Tesla V100-SXM2-16GB"),
    ],
)
def test_other_hardware_is_not_compared(name: str, a: str, b: str) -> None:
    result = as_json(*both(name))
    assert result["comparable"]["ok"] is False
    assert result["comparable"]["reasons"][0] == f"device: {a} against {b}"
    assert result["verdict"]["name"] == "inconclusive"
    assert result["verdict"]["reason"].startswith(f"not comparable: device: {a} against {b}")
    assert result["verdict"]["state"] == "not_comparable"


@pytest.mark.slow
def test_a_rank_compared_with_another_is_reported() -> None:
    result = as_json(*both("hta-diff"))
    texts = {warning["code"]: warning["text"] for warning in result["warnings"]}
    assert texts["ranks_apart"].startswith("rank 3 is compared with rank 1: ")


def test_the_answer_on_a_real_pair_reads_like_this(
    pair: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers and words, pinned: TRACEQ_UPDATE_GOLDENS=1 writes them anew, and the change shows in the commit."""
    name, a, b = pair
    monkeypatch.chdir(TRACES)
    done = traceq("diff", a.relative_to(TRACES), b.relative_to(TRACES))
    assert done.code == 0
    check_golden(f"catalogue/{name}.txt", done.out)
