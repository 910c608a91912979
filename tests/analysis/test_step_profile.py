"""What an unprofiled step is made of, from the samples that ranks wrote; checked by plain Python over their lines."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import Event, annotation, build, kernel, launch, op, step, table, write
from paths import FIXTURES, TRACES
from terminal import traceq

from traceq.analysis.registry import analyze
from traceq.facts.roofline.peaks import replaced_peaks
from traceq.model import Arm, CoreUse, Manifest, Pairs, Run, Trace, WallPart, WallTime
from traceq.runs.read import read
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, timings_of

FIXTURE = FIXTURES / "outlier_ab"
BACKWARD_STEP = ("bwd", "unscale_clip", "optim_step", "zero_grad_sched")


def line(wall_ns: int, *, pair: int = 0, arm: str = "run", index: int = 0, **more: Any) -> StepLine:
    """An unprofiled step, in nanoseconds that are easy to add."""
    entries = {"phases": {}, "cpu_ns": 0, "device_ns": 0, "peak_bytes": 0} | more
    return StepLine(arm=arm, a=arm, b=arm, pair=pair, half=0, index=index, wall_ns=wall_ns, **entries)


def manifest(arm: Arm | None = None, **more: Any) -> Manifest:
    entries: dict[str, Any] = {"parameters": {}, "phases": (), "num_ranks": 1} | more
    return Manifest(1, "id", "mine", "", arms=(arm or Arm("run", "", baseline=True),), seed=0, **entries)


def recorded(*ranks: Sequence[StepLine], **more: Any) -> Run:
    """A run of one arm whose ranks wrote these lines."""
    return Run("run", (), manifest(**more), "run", timings=timings_of(ranks, "run"))


def profile(run: Run) -> dict[str, Any]:
    result = analyze(run, "step_profile").tables[0]
    return dict(zip((column.key for column in result.columns), result.rows[0], strict=True)) | {
        part.key: dict(part.rows) for part in result.parts
    }


def shown(run: Run) -> dict[str, tuple[Any, ...]]:
    """Rows that people see, by phase: mean, median, p95, share."""
    (view,) = analyze(run, "step_profile").views
    return {str(row[0]): row[1:] for row in view.rows}


def test_phases_and_what_is_in_none_add_up_to_the_step() -> None:
    run = recorded(
        [line(100, phases={"forward": 30, "bwd": 60}), line(200, phases={"forward": 50, "bwd": 110})],
        [line(100, phases={"forward": 40, "bwd": 60}), line(200, phases={"forward": 60, "bwd": 110})],
    )
    assert shown(run) == {
        "forward": (45, 45, 58, 30.0, 40, 50),
        "bwd": (85, 85, 110, pytest.approx(100 * 85 / 150), 85, 85),
        "other": (20, 20, 38, pytest.approx(100 * 20 / 150), 25, 15),
        "total": (150, 150, 200, 100.0, 150, 150),
    }
    assert sum(row[3] for name, row in shown(run).items() if name != "total") == pytest.approx(100)


def test_each_rank_has_its_own_times_of_each_phase_many_ranks_their_extremes() -> None:
    def run_of(num: int) -> Run:
        return recorded(*([line(100, phases={"forward": 10 * rank})] for rank in range(1, num + 1)))

    def views(num: int) -> list[tuple[str, ...]]:
        (view,) = analyze(run_of(num), "step_profile").views
        assert num == 1 or view.rows[0][0] == "forward"
        return [tuple(column.title for column in view.columns), tuple(map(str, view.rows[0][-4:]))]

    assert views(1)[0] == ("phase", "mean", "median", "p95", "share")
    assert views(4)[0] == ("phase", "mean", "median", "p95", "share", "rank 0", "rank 1", "rank 2", "rank 3")
    assert views(4)[1] == ("10", "20", "30", "40")
    assert views(8)[0] == ("phase", "mean", *(f"rank {rank}" for rank in range(8)))
    assert views(9)[0] == (
        "phase", "mean", "median", "p95", "share", "slowest", "on rank", "median rank", "fastest"
    )  # fmt: skip
    assert views(9)[1] == ("90", "8", "50", "10")


def test_the_slowest_rank_is_named_where_it_is_slower_by_more_than_the_scatter() -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(100_000, 5_000, 320).astype(int)

    def text(longer: float, by_turns: float) -> str:
        """Blocks of 16 steps are longer, by turns more and less."""
        noise = by_turns * (-1.0) ** (np.arange(320) // 16)
        steps = (base + longer + noise).astype(int).tolist()
        run = recorded([line(ns) for ns in base.tolist()], [line(ns) for ns in steps])
        assert profile(run)["ranks_differ"] == ("slowest" in analyze(run, "step_profile").views[0].note)
        return analyze(run, "step_profile").views[0].note.partition(".  ")[0]

    assert "Rank 1 is the slowest" in text(2_000, 500)
    assert "slowest" not in text(200, 50)  # 0.2 %, however certain
    assert "slowest" not in text(1_500, 8_000)  # chance


def test_time_in_no_phase_is_explained_where_it_is_much() -> None:
    def note(forward: int) -> str:
        return analyze(recorded([line(100, phases={"forward": forward})]), "step_profile").views[0].note

    assert "`other` is the rest" in note(90)
    assert "`other`" not in note(96)


def test_warm_up_steps_that_settle_and_other_arms_do_not_count() -> None:
    run = recorded(
        [line(9, pair=-1), line(8, pair=-1), line(7, pair=-2), line(5), line(6, arm="else"), line(5, pair=1)]
    )
    result = profile(run)
    assert (result["warmup"], result["measured"], result["global_step_time_s"]) == (2, 2, pytest.approx(5e-9))
    assert run.timings is not None
    assert run.timings.since_pause.tolist() == [1, 3]


def test_each_process_of_an_arm_that_runs_apart_warms_up_and_its_steps_count_together() -> None:
    process = [line(9, pair=-1), line(8, pair=-1), line(5), line(7, pair=1)]
    result = profile(recorded([*process, line(1, arm="else", pair=-1), *process]))
    assert (result["warmup"], result["measured"], result["global_step_time_s"]) == (2, 4, pytest.approx(6e-9))


def test_the_slowest_rank_sets_the_pace_of_the_job() -> None:
    arm = Arm("run", "", baseline=True, samples_per_step=16)
    result = profile(recorded([line(10), line(30)], [line(20), line(40)], [line(10), line(20)], arm=arm))
    assert result["per_rank_step_time_s"] == pytest.approx({"0": 20e-9, "1": 30e-9, "2": 15e-9})
    assert (result["slowest_rank"], result["global_step_time_s"]) == (1, pytest.approx(30e-9))
    assert result["global_samples_per_sec"] == pytest.approx(16 / 30e-9)
    assert result["num_processes"] == 3


def test_backward_step_is_the_sum_of_its_parts_in_json_alone() -> None:
    first = dict(zip(BACKWARD_STEP, (40, 1, 5, 2), strict=True))
    second = dict(zip(BACKWARD_STEP, (60, 3, 4, 1), strict=True))
    run = recorded([line(100, phases=first), line(100, phases=second), line(100, phases=second)])
    result = profile(run)
    assert result["phase_means_s"]["backward_step"] == pytest.approx((48 + 68 + 68) / 3 * 1e-9)
    assert result["phase_medians_s"]["backward_step"] == pytest.approx(68e-9)
    assert "backward_step" not in shown(run)
    assert "backward_step" not in profile(recorded([line(10, phases={"bwd": 5})]))["phase_means_s"]


def test_on_a_device_its_clock_tells_the_phases_and_the_first_step_of_a_half_settles() -> None:
    half = [
        line(10, index=index, device_ns=ns, phases={"forward": 2}, device_phases={"forward": ns - 10}, peak_bytes=peak,
             reserved_bytes=2 * peak)
        for index, ns, peak in [(0, 900, 0), (1, 100, 0), (2, 120, 70)]
    ]  # fmt: skip
    run = recorded(half)
    result = profile(run)
    assert (result["clock"], result["measured"]) == ("device", 2)
    assert shown(run)["forward"] == (100, 100, 109, pytest.approx(100 * 100 / 110), 2)
    assert shown(run)["other"][:2] == (10, 10)
    assert (result["peak_alloc_gb_worst"], result["peak_reserved_gb_worst"]) == pytest.approx((70e-9, 140e-9))
    assert result["peak_rss_gb_worst"] is None


def test_an_older_recording_on_a_device_is_told_by_the_hosts_clock_and_says_so() -> None:
    run = recorded([line(100, device_ns=90, phases={"forward": 20}, peak_bytes=5)])
    assert profile(run)["clock"] == "host"
    assert (shown(run)["forward"][0], shown(run)["total"][0]) == (20, 100)
    assert "when work was launched" in analyze(run, "step_profile").views[0].note


def test_where_deepspeed_blurs_the_phases_it_is_said() -> None:
    blurred = recorded([line(10)], environment={"wrapper": "DeepSpeedEngine"})
    assert "DeepSpeed clips, steps and zeroes" in analyze(blurred, "step_profile").views[0].note
    assert profile(blurred)["distributed_type"] == "DeepSpeedEngine"
    assert profile(recorded([line(10)], environment={"wrapper": "none"}))["note"] == ""


@pytest.mark.parametrize(
    ("file", "strategy", "is_blurred"),
    [("zero2", "ZeRO-1 or 2", True), ("zero3", "ZeRO-3", True), ("zero1", "ZeRO-1", False), ("ddp", "DDP", False)],
)
def test_of_a_loop_the_trace_tells_how_ranks_share_the_work(file: str, strategy: str, is_blurred: bool) -> None:
    (trace,) = read(FIXTURE.parent / "strategies" / f"{file}.json.gz").traces
    result = profile(profiled(recorded([line(10)]), trace))
    assert (result["distributed_type"], bool(result["note"])) == (strategy, is_blurred)


def test_what_the_arm_was_given_comes_before_what_the_recipe_was() -> None:
    arm = Arm("run", "", baseline=True, varied={"batch_size": 16})
    given = {"batch_size": 8, "num_workers": 2, "prefetch_factor": 4, "grad_accum": 3}
    result = profile(recorded([line(10)], arm=arm, parameters=given))
    assert [result[key] for key in given] == [16, 2, 4, 3]


def test_the_worst_ranks_peak_counts() -> None:
    result = profile(recorded([line(10, peak_bytes=5)], [line(10, peak_bytes=9), line(10, peak_bytes=8)]))
    assert result["peak_rss_gb_worst"] == pytest.approx(9e-9)
    assert result["peak_alloc_gb_worst"] is None


def test_a_phase_that_is_called_other_joins_what_is_in_none() -> None:
    run = recorded([line(100, phases={"other": 30, "bwd": 60})])
    assert {name: row[0] for name, row in shown(run).items()} == {"bwd": 60, "other": 40, "total": 100}


def test_steps_without_phases_are_all_other() -> None:
    assert shown(recorded([line(100)])) == {"other": (100, 100, 100, 100.0), "total": (100, 100, 100, 100.0)}


def test_a_trace_alone_has_no_profile(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", step(0, 10), op("aten::mm", 1, 2))
    assert json.loads(traceq("show", path, "--json").out)["step_profile"] is None
    assert analyze(read(path), "step_profile").views == ()


def lines_of(rank: int, arm: str) -> Iterator[dict[str, Any]]:
    """Counted steps as they stand on disk."""
    for text in RunFolder(FIXTURE).samples(rank).read_text().splitlines():
        result = json.loads(text)
        if result["kind"] == "step" and result["arm"] == arm and result["pair"] >= 0:
            yield result


@pytest.mark.parametrize("arm", ["off", "on"])
def test_a_recorded_run_is_what_plain_python_makes_of_its_lines(arm: str) -> None:
    ranks = [list(lines_of(rank, arm)) for rank in (0, 1)]
    result = profile(read(FIXTURE / arm))
    assert result["measured"] == len(ranks[0]) == len(ranks[1])
    for name in ("dataload_wait", "forward", *BACKWARD_STEP, "sync_gather"):
        times = [each["phases"][name] / 1e9 for lines in ranks for each in lines]
        assert result["phase_means_s"][name] == pytest.approx(math.fsum(times) / len(times))
        assert result["phase_medians_s"][name] == pytest.approx(statistics.median(times))
        exact = statistics.quantiles(times, n=20, method="inclusive")[-1]
        assert result["phase_p95_s"][name] == pytest.approx(exact)
    means = [statistics.fmean(each["wall_ns"] for each in lines) / 1e9 for lines in ranks]
    assert result["global_step_time_s"] == pytest.approx(max(means))
    parts = {name: s for name, s in result["phase_means_s"].items() if name != "backward_step"}
    assert sum(parts.values()) == pytest.approx(statistics.fmean(means))


def profiled(run: Run, *traces: Trace) -> Run:
    return replace(run, traces=traces)


STEPS = (step(0, 120, 0), op("aten::mm", 1, 100), step(130, 140, 1), op("aten::mm", 140, 100))


def test_the_profilers_cost_is_the_traced_step_against_the_unprofiled_one() -> None:
    run = profiled(recorded([line(90_000), line(100_000), line(200_000)]), build(*STEPS))
    expected = {"rank": 0, "unprofiled_ns": 100_000, "num_unprofiled": 3, "profiled_ns": 130_000, "num_profiled": 2}
    assert table(run, "perturbation") == [expected | {"slowdown_pct": pytest.approx(30)}]
    note = analyze(run, "steps").views[0].note
    assert "Traced steps: 1.30x" in note


def test_a_copied_trace_knows_the_profilers_cost_from_its_pairs() -> None:
    b_second, first, second = np.array([True, False]), np.array([[50_000, 70_000]]), np.array([[60_000, 65_000]])
    pairs = (Pairs("run", "else", b_second, first, second), Pairs("run", "run", b_second, first, second))
    run = Run("a.json.gz", (build(*STEPS),), manifest(), "run", pairs)
    (row,) = table(run, "perturbation")
    assert (row["num_unprofiled"], row["unprofiled_ns"]) == (6, 62_500)  # 50, 65; and 50, 70, 60, 65 of the control
    assert table(replace(run, arm="else"), "perturbation")[0]["unprofiled_ns"] == 65_000


def test_a_trace_without_unprofiled_steps_says_nothing_of_the_profilers_cost() -> None:
    run = Run("a.json", (build(*STEPS),))
    assert table(run, "perturbation") == []
    assert "Profiler" not in analyze(run, "steps").views[0].note


def test_mfu_is_that_of_the_unprofiled_step() -> None:
    run = read(FIXTURES / "outlier_ab" / "on")
    with replaced_peaks(["fp32=0.2", "memory=20"]):
        report, traced = (analyze(run, name) for name in ("step_profile", "efficiency"))
    (profile,) = report.table("step_profile").to_dicts()
    flops = sum(row["model_flops"] for row in traced.table("efficiency").to_dicts()) / 2
    assert profile["mfu_pct"] == pytest.approx(100 * flops / 0.2e12 / profile["global_step_time_s"], rel=1e-6)
    assert f"MFU {profile['mfu_pct']:.1f} %" in str(report.views[0].note)
    assert analyze(run, "step_profile").table("step_profile").to_dicts()[0]["mfu_pct"] is None


def engine_steps(rng: random.Random, num: int) -> tuple[list[Event], dict[str, list[tuple[int, int]]]]:
    """Steps of an engine, one after the other, and (us, tokens) of those of each kind."""
    rows, steps_of, start = list[Event](), dict[str, list[tuple[int, int]]](), 0
    for number in range(num):
        prompts, decodes = rng.choice([(0, 8), (0, 16), (3, 0), (2, 8)])
        tokens, us = 100 * prompts + decodes, rng.randrange(50, 900)
        rows.append(
            annotation(f"execute_context_{prompts}({100 * prompts})_generation_{decodes}({decodes})", start, 30)
        )
        rows += [launch(start + 5, 2, number + 1), kernel("gemm", start + 10, us - 10, number + 1)]
        kind = "decode" if not prompts else "prefill" if not decodes else "mixed"
        steps_of.setdefault(kind, []).append((us, tokens))
        start += us
    return rows, steps_of


@pytest.mark.parametrize("seed", range(4))
def test_the_profile_of_an_engine_is_that_of_its_traced_steps_by_kind(seed: int) -> None:
    rows, steps_of = engine_steps(random.Random(seed), 40)
    report = analyze(Run("", (build(*rows),)), "step_profile")
    kinds = {str(row["kind"]): row for row in report.tables[2].to_dicts()}
    whole_us = sum(us for each in steps_of.values() for us, _ in each)
    assert kinds.keys() == steps_of.keys()
    for kind, each in steps_of.items():
        all_us = sorted(us for us, _ in each)
        assert kinds[kind]["num"] == len(each)
        assert kinds[kind]["mean_ns"] == round(1000 * sum(all_us) / len(each))
        assert kinds[kind]["median_ns"] == round(1000 * statistics.median(all_us))
        place = 0.95 * (len(all_us) - 1)
        low, high = all_us[math.floor(place)], all_us[math.ceil(place)]
        assert kinds[kind]["p95_ns"] == pytest.approx(1000 * (low + (high - low) * (place % 1)), abs=1)
        assert kinds[kind]["share_pct"] == pytest.approx(100 * sum(all_us) / whole_us)
        assert kinds[kind]["tokens_per_second"] == pytest.approx(1e6 * sum(num for _, num in each) / sum(all_us))
    (view,) = report.views
    assert [str(row[0]) for row in view.rows] == list(kinds)


@pytest.mark.parametrize("name", ["vllm-piecewise-mi300", "sglang-prefill-decode-mi300"])
def test_the_profile_of_a_real_engine_has_the_time_and_tokens_of_its_marks(name: str) -> None:
    path = TRACES / "inference" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no {TRACES}")
    run = read(path)
    (row,) = analyze(run, "step_profile").tables[2].to_dicts()
    (mark,) = table(run, "inference")
    assert (row["num"], row["kind"], row["mean_ns"], row["share_pct"]) == (1, mark["kind"], mark["dur_ns"], 100)
    assert row["tokens_per_second"] == pytest.approx(1e9 * mark["tokens"] / mark["dur_ns"])


def test_a_trace_of_another_program_has_no_kinds_of_steps() -> None:
    report = analyze(Run("", (build(step(0, 50), op("aten::mm", 5, 5)),)), "step_profile")
    assert (report.tables[2].rows, report.views) == ((), ())


@pytest.mark.parametrize(("ns", "severity"), [(4, None), (8, "medium"), (60, "high")])
def test_garbage_collections_have_a_share(ns: int, severity: str | None) -> None:
    steps = [line(100, pauses={"2 train.py:7": (1, ns)})] * 2
    findings = analyze(recorded(steps), "step_profile").findings
    codes = [(each.code, each.severity) for each in findings]
    assert codes == ([("garbage_collection", severity)] if severity else [])
    assert all((each.ns, each.measures["share_pct"]) == (ns, ns) for each in findings)
    assert all(each.measures["collection"].endswith("train.py:7") for each in findings)


def test_one_garbage_collection_has_no_share() -> None:
    steps = [line(100, pauses={"2": (1, 60)}), line(100)]
    assert analyze(recorded(steps), "step_profile").findings == ()


@pytest.mark.parametrize(
    ("cpu_ns", "is_told"),
    [
        pytest.param([100 + 10 * n for n in range(32)], True, id="longer each"),
        pytest.param([100 + n for n in range(32)], False, id="hardly longer"),
        pytest.param([100] * 31 + [9_000], False, id="one long step"),
        pytest.param([400 - 10 * n for n in range(32)], False, id="shorter each"),
    ],
)
def test_steps_that_grow_longer_lead(cpu_ns: list[int], is_told: bool) -> None:
    """By their CPU time: all are of the same wall time, as of a rank that waits for others."""
    findings = analyze(recorded([line(10_000, cpu_ns=ns) for ns in cpu_ns]), "step_profile").findings
    assert [finding.code for finding in findings] == ["longer_steps"] * is_told


def account(regular_ns: int, **others: int) -> WallTime:
    parts = [WallPart("regular", regular_ns, 10), *(WallPart(name, ns, 2, "a.py:7 f") for name, ns in others.items())]
    return WallTime(tuple(parts), samples=1_000, regular_samples=900, regular_ns=regular_ns)


def test_where_the_wall_time_went_leads_if_much_of_it_is_not_in_regular_steps() -> None:
    facts = account(380, epoch=620, recording=5_000, start_up=500).facts()
    report = analyze(recorded([line(100)], environment=facts), "step_profile")
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("wall_time", "high")
    assert finding.measures["part"] == "2 epoch starts (a.py:7 f)"
    assert [finding.measures[name] for name in ("part_pct", "training_ns")] == [pytest.approx(62), 1000]
    assert (finding.subject.line, finding.remedy) == ("a.py:7 f", "")
    rows = next(table for table in report.tables if table.key == "wall_time").to_dicts()
    assert [row["part"] for row in rows] == ["epoch", "regular", "recording", "start_up"]
    assert sum(row["ns"] for row in rows) == 6_500
    assert [row["training_pct"] for row in rows] == [pytest.approx(62), pytest.approx(38), None, None]


@pytest.mark.parametrize(("kind", "num", "is_told"), [("pause", 1, False), ("pause", 2, True), ("epoch", 1, True)])
def test_a_pause_that_came_once_tells_no_rate(kind: str, num: int, is_told: bool) -> None:
    facts = WallTime((WallPart("regular", 380, 10), WallPart(kind, 620, num))).facts()
    findings = analyze(recorded([line(100)], environment=facts), "step_profile").findings
    assert [finding.code for finding in findings] == ["wall_time"] * is_told


@pytest.mark.parametrize("kind", ["pause", "epoch"])
def test_pauses_on_a_busy_machine_are_not_the_jobs(kind: str) -> None:
    busy = CoreUse(2, 1, 0, 100, 80, 0, 20, 20, 0, other_busy_cores=1.5)
    facts = {**account(380, **{kind: 620}).facts(), **busy.facts(), "num_threads": 1}
    findings = analyze(recorded([line(100)], environment=facts), "step_profile").findings
    assert [finding.code for finding in findings] == ["wall_time"] * (kind != "pause")


def test_little_time_outside_of_regular_steps_is_no_finding() -> None:
    facts = account(950, checkpoint=50).facts()
    assert analyze(recorded([line(100)], environment=facts), "step_profile").findings == ()


@pytest.mark.parametrize("damage", ["", "{", '{"parts": 3}', '{"parts": []}', '{"parts": [{"name": "x", "ns": 1}]}'])
def test_a_damaged_account_tells_nothing(damage: str) -> None:
    assert analyze(recorded([line(100)], environment={"wall_time": damage}), "step_profile").findings == ()
