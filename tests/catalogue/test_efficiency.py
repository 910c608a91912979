"""On real traces: how much of the device's time has a model, and that nothing exceeds a roof."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from catalogue import FILES
from paths import TRACES

from traceq.analysis.registry import analyze
from traceq.facts.roofline.modelled_ops import TimeKind, modelled_ops
from traceq.model import Category, Trace
from traceq.runs.read import read


def shares(name: str) -> dict[TimeKind, float]:
    """Percent of all device time of each kind."""
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    (trace,) = read(path).traces
    return shares_of(trace)


def shares_of(trace: Trace) -> dict[TimeKind, float]:
    ops = modelled_ops(trace)
    ns = np.bincount(ops.unit_kind, ops.unit_ns, len(TimeKind))
    return {kind: 100 * float(ns[kind] / ns.sum()) for kind in TimeKind}


def test_of_the_linked_time_of_a_language_model_99_percent_are_modelled() -> None:
    parts = shares("qwen-h100/qwen1.5-0.5b")
    assert 100 * parts[TimeKind.MODELLED] / (100 - parts[TimeKind.NO_OP]) >= 99


@pytest.mark.slow
@pytest.mark.parametrize("name", ["owlv2/h100", "owlv2/mi300", "resnet50-2021/workers0"])
def test_of_models_of_images_97_percent_are_modelled(name: str) -> None:
    assert shares(name)[TimeKind.MODELLED] >= 97


@pytest.mark.slow
def test_of_a_model_of_images_with_many_copies_all_kernels_are_modelled() -> None:
    parts = shares("resnet50-2021/workers4")
    assert 100 * parts[TimeKind.MODELLED] / (100 - parts[TimeKind.COPY]) >= 97


BEST_OF_OTHERS = {
    "qwen-h100/qwen1.5-0.5b": 65.3,
    "owlv2/h100": 53.5,
    "owlv2/mi300": 53.3,
    "nanogpt-h100-8r/rank0": 62.0,
    "ep-moe-b200-ab/ref": 26.1,
    "ep-moe-b200-ab/syncless": 24.8,
    "inference/sglang-prefill-decode-mi300": 99.9,
    "inference/vllm-piecewise-mi300": 3.6,
}
"""Percent of all device time that the best other program models, without communication.

These programs count an op as modelled, too, of which only the arguments are known.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", BEST_OF_OTHERS)
def test_more_is_modelled_than_by_any_other_program(name: str) -> None:
    parts = shares(name)
    assert parts[TimeKind.MODELLED] + parts[TimeKind.ARGUMENTS] > BEST_OF_OTHERS[name]


@pytest.mark.slow
def test_of_what_a_recorded_op_launched_more_is_modelled_than_by_any_other_program() -> None:
    parts = shares("resnet-ddp-mi300/rank0")  # 6.5 % of its time was launched before the window
    assert 100 * parts[TimeKind.MODELLED] / (100 - parts[TimeKind.NO_OP]) > 20.3


def test_kernels_of_replayed_graphs_do_the_work_of_the_ops_in_their_capture(tmp_path: Path) -> None:
    for name in ("vllm-piecewise-mi300", "vllm-piecewise-mi300-capture"):
        path = TRACES / "inference" / f"{name}.json.gz"
        if not path.exists():
            pytest.skip(f"no {path}")
        (tmp_path / path.name).symlink_to(path)
    (trace,) = read(tmp_path).traces
    parts = shares_of(trace)
    assert parts[TimeKind.NO_OP] == 0
    assert parts[TimeKind.MODELLED] > 14.5
    assert parts[TimeKind.MODELLED] + parts[TimeKind.ARGUMENTS] > 99.9
    (alone,) = read(TRACES / "inference" / "vllm-piecewise-mi300.json.gz").traces
    assert 96 < shares_of(alone)[TimeKind.NO_OP] < 97


def test_products_of_a_language_model_run_at_632_tflops() -> None:
    path = TRACES / "qwen-h100/qwen1.5-0.5b.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    rows = [
        row for row in analyze(read(path), "efficiency").table("efficiency_ops").to_dicts() if row["op"] == "aten::mm"
    ]
    flops, ns = sum(row["flops"] for row in rows), sum(row["gpu_ns"] for row in rows)
    assert round(flops / 1e9, 2) == 4164.04
    assert round(flops / ns / 1e3, 1) == 632.0


@pytest.mark.slow
def test_flops_are_the_same_on_both_accelerators() -> None:
    both = [TRACES / "owlv2" / f"{name}.json.gz" for name in ("h100", "mi300")]
    if not both[0].exists():
        pytest.skip("no owlv2")
    h100, mi300 = (analyze(read(path), "efficiency").table("efficiency").to_dicts()[0] for path in both)
    assert h100["model_flops"] == mi300["model_flops"] > 10**12


@pytest.mark.parametrize("path", FILES)
def test_calls_are_those_of_a_walk_through_the_rows(path: object) -> None:
    run = read(str(path))
    (trace,) = run.traces
    events, modelled = trace.events, set(modelled_ops(trace).row.tolist())
    names = [name.rstrip("_") for name in events.strings]
    wanted: Counter[str] = Counter()
    rows = events.rows(Category.CPU_OP, Category.RUNTIME).tolist()
    starts, ends, name_of = events.ts.tolist(), events.end.tolist(), events.name.tolist()
    threads = list(zip(events.pid.tolist(), events.tid.tolist(), strict=True))
    open_rows: dict[tuple[int, int], list[int]] = {}
    for row in sorted(rows, key=lambda row: (starts[row], -ends[row], row)):
        around = open_rows.setdefault(threads[row], [])
        while around and ends[around[-1]] < ends[row]:
            around.pop()
        parent = around[-1] if around else None
        wanted[events.strings[name_of[row]]] += parent is None or name_of[parent] != name_of[row]
        if parent in modelled and row in modelled:
            assert names[name_of[parent]] != names[name_of[row]]
        around.append(row)
    counts: Counter[str] = Counter()
    for each in analyze(run, "host").table("host").to_dicts():
        counts[each["name"]] += each["num"]
    assert counts == wanted


@pytest.mark.parametrize("path", FILES)
def test_no_row_exceeds_a_roof_and_the_ledger_is_closed(path: object) -> None:
    report = analyze(read(str(path)), "efficiency")
    for row in report.table("efficiency_ops").to_dicts():
        assert row["roof_pct"] is None or 0 <= row["roof_pct"] <= 100
        assert bool(row["doubt"]) == (row["roof"] != "" and row["roof_pct"] is None)
    for rank in report.table("efficiency").to_dicts():
        assert rank["mfu_pct"] is None or 0 <= rank["mfu_pct"] <= rank["hfu_pct"] <= 100
    ledger = report.table("efficiency_ledger").to_dicts()
    for number in {row["rank"] for row in ledger}:
        assert sum(row["share_pct"] for row in ledger if row["rank"] == number) == pytest.approx(100)
