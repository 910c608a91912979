"""What a loader alone can deliver, and whether it keeps up with steps: in nanoseconds that are easy to add."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from terminal import traceq

from traceq.analysis.loader import loader_of
from traceq.analysis.registry import analyze
from traceq.analysis.sentences import NO_WORKERS
from traceq.compare.diff import diff, diff_runs
from traceq.model import Arm, Manifest, Run
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import Line, StepLine, timings_of

ALONE = ("fetch", "h2d")
MS = 1_000_000


def line(wall_ns: int, *, pair: int = 0, **phases: int) -> StepLine:
    return StepLine("run", "run", "run", pair, 0, 0, phases, wall_ns, 0, 0, 0)


def batch(fetch: int, h2d: int = 0, *, pair: int = 0) -> StepLine:
    return line(fetch + h2d, pair=pair, fetch=fetch, h2d=h2d)


def manifest(phases: tuple[str, ...], num_ranks: int, samples: int, **parameters: int) -> Manifest:
    arm = Arm("run", "", baseline=True, samples_per_step=samples)
    return Manifest(1, f"{phases}", "mine", "", parameters, (arm,), phases, num_ranks, 0, status="complete")


def alone(*ranks: Sequence[StepLine], samples: int = 0, **parameters: int) -> Run:
    recorded = manifest(ALONE, len(ranks), samples, **parameters)
    return Run("loader", (), recorded, "run", timings=timings_of(ranks, "run"))


def training(*ranks: Sequence[StepLine], samples: int = 0, **parameters: int) -> Run:
    recorded = manifest(("dataload_wait", "forward"), len(ranks), samples, **parameters)
    return Run("steps", (), recorded, "run", timings=timings_of(ranks, "run"))


def figures(run: Run) -> dict[str, Any]:
    (row,) = analyze(run, "loader").tables[0].to_dicts()
    return row


@pytest.mark.parametrize(("device", "is_shown"), [("cpu", False), ("cuda", True)])
def test_only_a_job_with_a_device_shows_copies_to_it(device: str, is_shown: bool) -> None:
    run = alone([batch(2 * MS, 1000), batch(2 * MS, 1000)])
    assert run.manifest is not None
    report = analyze(replace(run, manifest=replace(run.manifest, environment={"device": device})), "loader")
    assert any("h2d" in column.title for column in report.views[0].columns) == is_shown
    assert "h2d_mean_ns" in report.tables[1].to_dicts()[0]


def test_the_slowest_rank_is_the_ceiling_of_the_job() -> None:
    run = alone([batch(2 * MS), batch(2 * MS)], [batch(3 * MS), batch(4 * MS, MS)], samples=16)
    row = figures(run)
    assert (row["batches_per_sec_min"], row["batches_per_sec_max"]) == pytest.approx((250, 500))
    assert row["batches_per_sec_mean"] == pytest.approx(375)
    assert row["samples_per_sec_ceiling"] == pytest.approx(250 * 16)
    ranks = analyze(run, "loader").tables[1].rows
    assert ranks[1][:7] == (1, 3.5 * MS, 3.5 * MS, 3.95 * MS, 0.5 * MS, 0.5 * MS, 0.95 * MS)
    assert figures(alone([batch(MS)]))["samples_per_sec_ceiling"] is None


def test_batches_that_the_workers_made_during_a_pause_do_not_count() -> None:
    after_pause = [batch(1, pair=-2), batch(1, pair=-2), batch(1), batch(1), *[batch(100)] * 3]
    run = alone([batch(9, pair=-1), *after_pause, *after_pause], num_workers=2, prefetch_factor=2)
    assert (figures(run)["measured"], figures(run)["counted"]) == (10, 6)
    assert figures(run)["batches_per_sec_min"] == pytest.approx(1e9 / 100)


def test_bursts_of_four_workers_are_three_batches_that_lie_ready_and_one_that_is_waited_for() -> None:
    bursts = [batch(ns) for start in range(20) for ns in (12 * MS + start, 200_000, 210_000 + start, 190_000)]
    run = alone([batch(1, pair=-2)] * 8 + bursts, num_workers=4, prefetch_factor=2)
    row = figures(run)
    assert (row["bimodal"], row["ready_pct"], row["batches_per_wait"]) == (True, 75, 4)
    assert (row["ready_ns"], row["waited_ns"]) == (200_000, 12 * MS + 10)
    note = analyze(run, "loader").views[0].note
    assert "75.0 % of the batches were ready" in note
    assert "4.0 batches per wait" in note


@pytest.mark.parametrize(
    "fetches", [range(100, 1100), [500] * 9, [500], [100] * 99 + [9000], [100, 300] * 50], ids=repr
)
def test_fetches_of_one_kind_are_not_called_bimodal(fetches: Sequence[int]) -> None:
    """Evenly spread, all alike, a single one, a lone straggler, and two kinds that lie close together."""
    assert figures(alone([batch(ns) for ns in fetches]))["bimodal"] is False


def test_a_loop_without_workers_makes_its_batches_itself() -> None:
    assert NO_WORKERS in analyze(alone([batch(5)], num_workers=0), "loader").views[0].note


def test_a_recording_of_steps_is_no_loader_and_a_loader_is_not_told_twice() -> None:
    steps = training([line(10, dataload_wait=1)])
    assert (loader_of(steps.manifest, "run", steps.timings), analyze(steps, "loader").views) == (None, ())
    assert analyze(alone([batch(5)]), "step_profile").views == ()


def test_steps_are_starved_by_what_the_loader_takes_longer_than_the_rest_of_them() -> None:
    loader = alone([batch(40 * MS)], [batch(50 * MS)], samples=16)
    steps = training([line(51 * MS, dataload_wait=21 * MS)], [line(52 * MS, dataload_wait=22 * MS)], samples=16)
    difference = diff_runs(loader, steps)
    assert difference.feeding is not None
    assert (difference.feeding.loader_ns, difference.feeding.rest_ns, difference.feeding.is_starved) == (
        50 * MS,
        30 * MS,
        True,
    )
    assert difference.answer.code == "starved"
    measures = difference.answer.measures
    assert (measures["starved_ns"], measures["wait_ns"]) == (20 * MS, 22 * MS)
    assert (measures["loaded_rate"], measures["trained_rate"]) == pytest.approx((320, 533.3), rel=1e-3)
    assert (difference.comparison, difference.traced, difference.causes) == (None, None, ())
    assert diff_runs(steps, loader).feeding == difference.feeding


def test_a_loader_that_keeps_up_is_told_by_how_much_and_what_steps_wait_nevertheless() -> None:
    loader = alone([batch(4 * MS)], samples=8)
    steps = training([line(100 * MS, dataload_wait=10 * MS)], samples=8)
    fed = diff_runs(loader, steps).answer
    assert (fed.code, fed.measures["feeds_ratio"]) == ("not_starved", 22.5)
    assert (fed.measures["wait_ns"], fed.measures["wait_pct"]) == (10 * MS, 10)
    calm = training([line(100 * MS, dataload_wait=MS)], samples=8)
    assert "wait_ns" not in diff_runs(loader, calm).answer.measures


def test_a_step_of_several_batches_needs_as_many_of_the_loader() -> None:
    """Two ranks' loader of 4 samples a batch; one rank's steps of 16 samples."""
    loader = alone([batch(5 * MS)], [batch(5 * MS)], samples=8, batch_size=4)
    steps = training([line(19 * MS, forward=19 * MS)], samples=16, batch_size=4)
    feeding = diff_runs(loader, steps).feeding
    assert feeding is not None
    assert (feeding.batches_per_step, feeding.loader_ns, feeding.is_starved) == (4, 20 * MS, True)


def test_a_loader_with_other_settings_is_named() -> None:
    difference = diff_runs(alone([batch(5)], num_workers=4), training([line(9)], num_workers=1, batch_size=2))
    (doubt,) = difference.caveats
    assert doubt.text.startswith("num_workers: 4 against 1: ")


def test_two_loaders_are_compared_like_any_two_recordings() -> None:
    first, second = alone([batch(5)]), alone([batch(9)])
    assert diff_runs(first, second).feeding is None


def on_disk(folder: Path, run: Run, lines: Sequence[Line]) -> Path:
    assert run.manifest is not None
    folder.mkdir()
    RunFolder(folder).write_manifest(run.manifest)
    RunFolder(folder).steps.mkdir()
    RunFolder(folder).samples(0).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    return folder


def test_two_runs_on_disk_are_answered_in_a_sentence(tmp_path: Path) -> None:
    batches, steps = [batch(30 * MS)], [line(30 * MS, dataload_wait=20 * MS)]
    paths = [
        on_disk(tmp_path / "loader", alone(batches), batches),
        on_disk(tmp_path / "steps", training(steps), steps),
    ]
    assert diff(*paths).feeding is not None
    assert traceq("diff", *paths).out.strip().startswith("Starved: ")
    assert json.loads(traceq("diff", *paths, "--json").out)["feeding"] == {
        "starved": True,
        "loader_ns": 30 * MS,
        "step_ns": 30 * MS,
        "wait_ns": 20 * MS,
        "rest_ns": 10 * MS,
        "batches_per_step": 1.0,
        "samples_per_step": None,
    }
    assert "Data loader alone" in traceq("show", paths[0]).out
