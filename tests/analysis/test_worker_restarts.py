"""A loader whose workers are started anew for each epoch, told from the draw of their seed, or by Python's frames."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builder import Event, annotation, build, frame, op, step, write
from oracle.findings import finding_times

from traceq.analysis.registry import analyze, sheet
from traceq.claims.claim import Basis, Claim
from traceq.facts.timeline.data_loading import loader_iterations, loader_waits
from traceq.intervals import measure
from traceq.kineto.read import read_trace
from traceq.model import Arm, Manifest, Run, Trace
from traceq.runs.step_log import StepLine, timings_of

MS = 1_000_000
RECORDED = """
import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

path, shuffles, persists = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
data = TensorDataset(torch.randn(96, 64))
loader = DataLoader(data, 16, shuffle=shuffles, num_workers=2, persistent_workers=persists)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters())
with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=14, repeat=1), with_stack=True
) as profiler:
    for _ in range(3):
        for (batch,) in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
profiler.export_chrome_trace(path)
"""
"""A loop of torch's: the steps of its window begin two epochs."""
NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OWN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
CREATION = "torch/utils/data/dataloader.py(433): _get_iterator"


def draws(start: float, *, names: Sequence[str] = ("empty", "random_", "item")) -> list[Event]:
    """Ops of 2 us each, one after the other; those inside `aten::item` and `aten::randperm`, too."""
    inner = {"item": "aten::_local_scalar_dense", "randperm": "aten::resize_"}
    rows = []
    for number, name in enumerate(names):
        rows.append(op(f"aten::{name}", start + 2 * number, 2))
        rows += [op(inner[name], start + 2 * number, 1)] if name in inner else []
    return rows


ORDER = ("empty", "random_", "item", "randperm", "resolve_conj", "resolve_neg")


def restarting(
    start: float, *, ends_us: float = 4_000, starts_us: float = 5_000, first_us: float = 2_000
) -> list[Event]:
    """The end of an epoch and the begin of the next: workers end, others start, an order is drawn, a batch comes."""
    seeded = start + ends_us + 10
    begins = seeded + starts_us
    return [
        annotation(NEXT, start, ends_us),
        *draws(seeded),
        *draws(begins - 20, names=ORDER),
        annotation(NEXT, begins, first_us),
    ]


def epochs(*begins: list[Event], num_steps: int = 6, every: int = 3) -> list[Event]:
    """Steps of 20 ms that compute for 2 ms; in every third one an epoch begins, as long as there are `begins`."""
    rows: list[Event] = []
    for number in range(num_steps):
        start = 20_000 * number
        rows += [step(start, 20_000, number), op("aten::mm", start + 15_000, 2_000)]
        index, rest = divmod(number, every)
        if rest == 1 and index < len(begins):
            rows += begins[index]
        else:
            rows.append(annotation(NEXT, start, 10))
    return rows


def restarts_of(trace: Trace) -> list[Claim]:
    findings = analyze(Run("trace", (trace,)), "dataload").findings
    return [finding for finding in findings if finding.code == "worker_restarts"]


def of_restarts(*events: Event) -> list[Claim]:
    return restarts_of(build(*events))


def test_workers_that_start_anew_for_each_epoch_are_told_with_the_end_of_the_others_and_the_first_batch() -> None:
    """Twice 4 ms until the workers ended, 5 ms until others started, 2 ms for a batch; 10 us of Python between."""
    trace = build(*epochs(restarting(20_000), restarting(80_000)))
    starts = loader_iterations(trace)
    assert (starts.made[:, 1] - starts.made[:, 0]).tolist() == [5_000_000] * 2
    assert (starts.whole[:, 1] - starts.whole[:, 0]).tolist() == [11_010_000] * 2
    assert starts.is_again.tolist() == [True, True]
    (finding,) = of_restarts(*epochs(restarting(20_000), restarting(80_000)))
    assert (finding.ns, finding.gain, finding.basis) == (round(2 * 11_000_000 / 6), (0, 3_666_667), Basis(6))
    assert (finding.measures["num_restarts"], finding.measures["share_pct"]) == (2, pytest.approx(18.33, abs=0.01))


def test_one_restart_is_enough() -> None:
    (finding,) = of_restarts(*epochs(restarting(20_000)))
    assert finding.measures["num_restarts"] == 1


def test_the_first_epoch_starts_its_workers_and_is_no_restart() -> None:
    trace = build(step(0, 20_000), *restarting(0)[1:], op("aten::mm", 15_000, 2_000))
    assert loader_iterations(trace).is_again.tolist() == [False]
    assert measure(loader_waits(trace)) == 7_000_000
    assert not of_restarts(step(0, 20_000), *restarting(0)[1:], op("aten::mm", 15_000, 2_000))


def test_persistent_workers_do_not_start_though_their_order_is_drawn_anew() -> None:
    """Between the draw of an order and the first batch there may be a pause, too; there is none after the seed."""
    again = [annotation(NEXT, 20_000, 10), *draws(20_020, names=ORDER), annotation(NEXT, 25_000, 4_000)]
    assert not of_restarts(*epochs(again))
    begins = loader_iterations(build(*epochs(again)))
    assert (begins.made.tolist(), len(begins.with_new_workers)) == ([[20_020_000, 25_000_000]], 0)


def test_persistent_workers_that_begin_their_first_batch_with_the_epoch_are_no_lack_of_workers() -> None:
    """Each step waits for 2 ms; in two of six an epoch begins, which takes 6.99 ms more."""
    rows: list[Event] = []
    for number in range(6):
        start = 20_000 * number
        rows += [step(start, 20_000, number), annotation(NEXT, start, 2_000), op("aten::mm", start + 15_000, 2_000)]
        if number % 3 == 1:
            rows += [*draws(start + 2_010, names=ORDER), annotation(NEXT, start + 3_000, 6_000)]
    (finding,) = analyze(Run("trace", (build(*rows),)), "dataload").findings
    assert (finding.code, finding.remedy) == ("starved", "first_batches")
    assert finding.measures["first_batches_ns"] == pytest.approx(2 * 8_990_000 / 6, abs=1)


def test_a_seed_that_the_step_draws_itself_starts_nothing() -> None:
    drawn = [*draws(20_000), op("aten::dropout", 26_000, 10), annotation(NEXT, 27_000, 2_000)]
    assert not of_restarts(*epochs(drawn))


def test_a_loop_that_makes_an_iterator_for_each_batch_restarts_each_time() -> None:
    rows: list[Event] = []
    for number in range(4):
        start = 20_000 * number
        rows += [step(start, 20_000, number), *restarting(start)[1:], op("aten::mm", start + 15_000, 2_000)]
    (finding,) = of_restarts(*rows)
    assert (finding.measures["num_restarts"], finding.ns) == (3, 3 * 7_000_000 // 4)


def test_restarts_in_the_steps_of_a_recording_explain_its_waits() -> None:
    """These are of its unprofiled steps, of which regular ones, as the traced, have restarts, too."""
    trace = build(*epochs(restarting(20_000), restarting(80_000)))
    waits = {"dataload_wait": 11 * MS}
    lines = [StepLine("run", "run", "run", pair, 0, 0, waits, 20 * MS, 0, 0, 0) for pair in range(64)]
    manifest = Manifest(1, "run", "", "", {}, (Arm("run", "", baseline=True),), (), num_ranks=1, seed=0)
    run = Run("run", (trace,), manifest, "run", timings=timings_of([lines], "run"))
    assert [finding.code for finding in analyze(run, "dataload").findings] == ["worker_restarts", "starved"]
    assert [finding.code for finding in sheet(run, ("dataload",)).leads] == ["worker_restarts"]


def test_what_a_loop_does_between_epochs_is_no_restart() -> None:
    begin = [*restarting(20_000), op("aten::eval", 24_001, 3)]
    (finding,) = of_restarts(*epochs(begin, restarting(80_000)))
    assert finding.ns == pytest.approx((7_000_000 + 11_000_000) / 6, abs=1)


def test_frames_of_python_tell_starts_that_take_less_than_a_process_usually_does() -> None:
    rows = restarting(20_000, starts_us=500)
    assert not of_restarts(*epochs(rows, restarting(80_000, starts_us=500)))
    framed = [*epochs(rows), frame(CREATION, 24_005, 500), frame("train.py(1): main", 0, 120_000)]
    assert loader_iterations(build(*framed)).made.tolist() == [[24_005_000, 24_505_000]]


def test_a_loader_without_workers_starts_none() -> None:
    rows = [event if event["name"] != NEXT else event | {"name": OWN} for event in epochs(restarting(20_000))]
    assert not of_restarts(*rows)
    assert not of_restarts(*rows, frame(CREATION, 24_005, 5_000))


def phases_of(trace: Trace) -> dict[str, int]:
    rows = analyze(Run("trace", (trace,)), "phases").tables[0].to_dicts()
    return {row["name"]: row["cpu_ns"] for row in rows}


def test_the_start_of_workers_is_time_of_the_loader_in_all_tables() -> None:
    trace = build(*epochs(restarting(20_000), restarting(80_000)))
    waits_ns = 2 * 11_000_000 + 4 * 10_000
    assert phases_of(trace)["dataload"] == waits_ns
    rows = analyze(Run("trace", (trace,)), "partition").tables[0].to_dicts()
    waiting = [row for row in rows if row["category"] == "dataload_wait"]
    assert {row["phase"] for row in waiting} == {"dataload"}


@pytest.mark.parametrize(
    "begins",
    [
        (restarting(20_000), restarting(80_000)),
        (restarting(20_000),),
        ([*restarting(20_000), op("aten::eval", 24_001, 3)], restarting(80_000)),
    ],
)
def test_their_time_is_that_of_a_second_implementation(begins: tuple[list[Event], ...], tmp_path: Path) -> None:
    rows = epochs(*begins)
    (finding,) = of_restarts(*rows)
    assert finding.ns == pytest.approx(finding_times(write(tmp_path / "trace.json", *rows))["worker_restarts"], abs=1)


def recorded(path: Path, *, shuffles: bool, persists: bool) -> dict[str, Any]:
    command = [sys.executable, "-c", RECORDED, str(path), str(shuffles), str(persists)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.slow
@pytest.mark.parametrize("shuffles", [True, False])
def test_the_seed_of_the_workers_tells_what_the_frames_of_a_recorded_loop_do(tmp_path: Path, shuffles: bool) -> None:
    pytest.importorskip("torch")
    document = recorded(tmp_path / "trace.json", shuffles=shuffles, persists=False)
    rows = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    frames = [event for event in rows if event["cat"] == "python_function" and "_get_iterator" in event["name"]]
    assert len(frames) == 2
    with_frames = loader_iterations(read_trace(tmp_path / "trace.json"))
    document["traceEvents"] = [event for event in rows if event["cat"] != "python_function"]
    (tmp_path / "plain.json").write_text(json.dumps(document))
    by_seed = loader_iterations(read_trace(tmp_path / "plain.json"))
    took = with_frames.made[:, 1] - with_frames.made[:, 0]
    assert took.tolist() == pytest.approx([1000 * event["dur"] for event in frames], abs=MS)
    assert by_seed.made.ravel().tolist() == pytest.approx(with_frames.made.ravel().tolist(), abs=MS)
    assert by_seed.whole.ravel().tolist() == pytest.approx(with_frames.whole.ravel().tolist(), abs=MS)
    (finding,) = restarts_of(read_trace(tmp_path / "plain.json"))
    assert finding.ns == pytest.approx(finding_times(tmp_path / "plain.json")["worker_restarts"], abs=1)


@pytest.mark.slow
def test_persistent_workers_of_a_recorded_loop_do_not_start_anew(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    document = recorded(tmp_path / "trace.json", shuffles=True, persists=True)
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") != "python_function"]
    (tmp_path / "plain.json").write_text(json.dumps(document))
    for name in ("trace", "plain"):
        begins = loader_iterations(read_trace(tmp_path / f"{name}.json"))
        assert (len(begins.made), len(begins.with_new_workers)) == (2, 0)
