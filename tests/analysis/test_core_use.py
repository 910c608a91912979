"""Who shares the cores with a step: its own loader workers, or processes outside the job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builder import build, op, step

from traceq.analysis.registry import analyze
from traceq.model import Arm, CoreUse, Manifest, Run
from traceq.runs.step_log import StepLine
from traceq.runs.timings import timings_of

MS = 1_000_000
USE = CoreUse(
    cores_available=2,
    ranks_per_host=1,
    loader_workers=1,
    timed_step_ns=100 * MS,
    step_cpu_ns=130 * MS,
    worker_cpu_ns=68 * MS,
    step_core_wait_ns=60 * MS,
    thread_core_wait_ns=30 * MS,
    worker_core_wait_ns=29 * MS,
    other_busy_cores=0.02,
)


def recorded(use: CoreUse, *, num_threads: int = 2, wait_ms: int = 2, **facts: int | str) -> Run:
    phases_ns = {"dataload_wait": wait_ms * MS}
    steps = [StepLine("run", "run", "run", number, 0, number, phases_ns, 100 * MS, 0, 0, 0) for number in range(64)]
    environment = {**use.facts(), "num_threads": num_threads, **facts}
    arms, phases = (Arm("run", "", baseline=True),), ("dataload_wait",)
    manifest = Manifest(1, "id", "", "", {}, arms, phases, 1, 0, status="complete", environment=environment)
    return Run("run", (), manifest, "run", timings=timings_of([steps], "run"))


def findings(run: Run) -> dict[str, str]:
    reports = analyze(run, "loader"), analyze(run, "dataload")
    return {finding.code: finding.text for report in reports for finding in report.findings}


def rows(run: Run) -> list[dict[str, Any]]:
    return next(table for table in analyze(run, "loader").tables if table.key == "core_use").to_dicts()


def test_a_busy_worker_and_two_threads_contend_for_two_cores() -> None:
    text = findings(recorded(USE))["contended_cores"]
    assert "1 loader worker (68.0 % busy, 97.0 % with its waits for a core) and 2 torch threads share 2 cores" in text
    assert "a thread of the step waits 30.0 ms (30.0 %) for a core" in text
    assert "--toggle @threads=default,1" in text


LINES = json.dumps([["a.py:24 clip", 40], ["a.py:21 clip", 38], ["a.py:24 crop", 12], ["b.py:24 clip", 5]])


def test_the_function_that_workers_are_in_comes_first_in_the_advice() -> None:
    text = findings(recorded(USE, worker_samples=100, worker_lines=LINES))["contended_cores"]
    work = "try less work per sample (78.0 % of 100 samples of loading workers are in clip, most at a.py:24)"
    assert text.endswith(f"{work}, num_workers=0, or fewer torch threads (--toggle @threads=default,1)")


def test_too_few_samples_name_no_line() -> None:
    lines = json.dumps([["collate.py:401 default_collate", 2], ["a.py:24 clip", 1]])
    assert "samples" not in findings(recorded(USE, worker_samples=3, worker_lines=lines))["contended_cores"]


@pytest.mark.parametrize("lines", ["", "[]", "7", '[["a.py:24 clip", 300]]', '[["a.py:24 clip", null]]', '[["x", -1]]'])
def test_damaged_samples_are_none(lines: str) -> None:
    assert "samples" not in findings(recorded(USE, worker_samples=100, worker_lines=lines))["contended_cores"]


def test_a_starved_step_without_a_free_core_is_not_told_to_take_more_workers() -> None:
    waits = recorded(USE, wait_ms=20)
    assert "try less work per sample, as its workers find no free core" in findings(waits)["starved"]
    roomy = recorded(replace(USE, cores_available=4), wait_ms=20)
    assert "try less work per sample, or more workers" in findings(roomy)["starved"]


@pytest.mark.parametrize(
    "change",
    [
        {"cores_available": 4},
        {"thread_core_wait_ns": 4 * MS},
        {"loader_workers": 0, "worker_cpu_ns": 0, "worker_core_wait_ns": 0},
        {"worker_cpu_ns": 5 * MS, "worker_core_wait_ns": MS},
    ],
    ids=["enough cores", "hardly a wait", "no workers", "idle workers"],
)
def test_nothing_contends_where_there_is_room(change: dict[str, int]) -> None:
    assert findings(recorded(replace(USE, **change))) == {}


def test_a_thread_waits_no_longer_than_the_step_however_many_wait() -> None:
    """Beside one torch thread, those of gloo, of autograd and of pinned memory wait, too."""
    use = replace(USE, cores_available=1, step_core_wait_ns=210 * MS, thread_core_wait_ns=50 * MS)
    assert "waits 50.0 ms (50.0 %) for a core" in findings(recorded(use, num_threads=1))["contended_cores"]


def test_one_thread_beside_one_worker_has_a_core_of_its_own() -> None:
    assert findings(recorded(USE, num_threads=1)) == {}


def test_two_ranks_on_a_host_share_its_cores() -> None:
    use = replace(USE, cores_available=4, ranks_per_host=2)
    assert "2 torch threads, on each of 2 ranks, share 4 cores" in findings(recorded(use))["contended_cores"]


OF_RANKS = {"ranks_per_host": 2, "step_cpu_ns": 77 * MS, "step_core_wait_ns": 52 * MS, "thread_core_wait_ns": 17 * MS}


@pytest.mark.parametrize(
    ("worker_ns", "words"),
    [(0, "busy, and"), (3 * MS, "busy, their loader workers 0.16 more, and")],
)
def test_workers_that_hardly_run_are_not_why_the_threads_of_two_ranks_wait(worker_ns: int, words: str) -> None:
    """Of two ranks on gloo a thread waits as long without a worker (measured: 13.8 % of a step, with two 13.2 %)."""
    workers = {"loader_workers": bool(worker_ns), "worker_cpu_ns": worker_ns, "worker_core_wait_ns": 5 * worker_ns // 3}
    text = findings(recorded(replace(USE, **OF_RANKS, **workers), num_threads=1))["contended_cores"]
    assert (
        f"all threads of 2 ranks would keep 2.58 cores {words} there are 2: a thread of the step waits 17.0 ms (17.0 %)"
        in text
    )
    assert text.endswith("try more cores per rank")


def test_more_torch_threads_than_cores_are_told_to_be_fewer() -> None:
    use = replace(USE, loader_workers=0, worker_cpu_ns=0, worker_core_wait_ns=0, step_core_wait_ns=120 * MS)
    text = findings(recorded(use, num_threads=4))["contended_cores"]
    assert text.endswith("try fewer torch threads (--toggle @threads=default,1), or more cores per rank")
    assert "contended_cores" not in findings(recorded(replace(use, other_busy_cores=0.5), num_threads=4))


def test_a_machine_that_others_use_is_called_busy_and_the_workers_are_not_blamed() -> None:
    codes = findings(recorded(replace(USE, other_busy_cores=1.6, worker_cpu_ns=10 * MS)))
    assert list(codes) == ["busy_machine"]
    assert "processes outside the job keep 1.60 of 2 cores busy" in codes["busy_machine"]


def test_that_a_machine_is_busy_comes_after_what_the_job_could_do() -> None:
    (finding,) = analyze(recorded(replace(USE, other_busy_cores=1.6, worker_cpu_ns=10 * MS)), "loader").findings
    assert finding.severity == "low"


def test_that_a_machine_is_busy_is_one_short_sentence() -> None:
    busy = replace(
        USE, cores_available=1024, other_busy_cores=1023.45, timed_step_ns=10**12, thread_core_wait_ns=10**12
    )
    assert len(findings(recorded(busy))["busy_machine"]) <= 210


@pytest.mark.parametrize(("wait_ms", "thread_wait_ms", "is_all"), [(2, 0, True), (50, 0, False), (2, 17, False)])
def test_ops_of_traced_steps_are_not_all_where_unprofiled_ones_wait(
    wait_ms: int, thread_wait_ms: int, is_all: bool
) -> None:
    """`only less or faster work there saves much` stood below `starved`, and below `busy machine`."""
    use = replace(USE, worker_cpu_ns=0, other_busy_cores=1.0, thread_core_wait_ns=thread_wait_ms * MS)
    run = replace(recorded(use, wait_ms=wait_ms), traces=(build(step(0, 1000), op("aten::mm", 0, 950)),))
    (finding,) = (each for each in analyze(run, "partition").findings if each.code == "cpu_bound")
    assert ("only less or faster work there saves much" in finding.text) == is_all


@pytest.mark.parametrize(("num_threads", "is_told"), [(1, False), (2, True)])
def test_fewer_threads_are_a_comparison_where_others_leave_fewer_cores(num_threads: int, is_told: bool) -> None:
    """An RL job of two threads on two cores, one of which is busy: 198 ms per step, 13.2 ms with one thread."""
    text = findings(recorded(replace(USE, other_busy_cores=1.0, worker_cpu_ns=0), num_threads=num_threads))[
        "busy_machine"
    ]
    assert text.endswith("in turns (fewer torch threads: --toggle @threads=default,1)") == is_told


def test_the_title_says_that_times_are_those_of_a_rank_of_several() -> None:
    run = recorded(replace(USE, ranks_per_host=2))
    assert run.manifest is not None
    (view,) = analyze(replace(run, manifest=replace(run.manifest, num_ranks=4)), "loader").views
    assert view.title == ("CPU time per rank of an unprofiled step, by process (mean of 4 ranks; 2 cores for 2 ranks)")
    (of_one,) = analyze(recorded(USE), "loader").views
    assert of_one.title == "CPU time of an unprofiled step, by process (2 cores)"


def test_the_table_has_a_row_for_each_kind_of_process() -> None:
    training_row, worker, others = rows(recorded(replace(USE, loader_workers=2)))
    assert (training_row["cpu_ns"], training_row["busy_pct"], training_row["threads"]) == (130 * MS, 130, 2)
    assert (worker["num"], worker["cpu_ns"], worker["core_wait_ns"]) == (2, 34 * MS, 14.5 * MS)
    assert (others["num"], others["busy_pct"]) == (None, pytest.approx(2))
    assert len(rows(recorded(replace(USE, other_busy_cores=-1)))) == 2


def test_an_arm_that_takes_turns_with_the_baseline_has_no_clocks_of_its_own() -> None:
    run = recorded(USE)
    assert run.manifest is not None
    arms = (*run.manifest.arms, Arm("on", ""))
    in_turns, apart = (replace(run, arm="on", manifest=replace(run.manifest, arms=arms, apart=each)) for each in (0, 1))
    assert rows(in_turns) == []
    assert len(rows(apart)) == 3


def test_the_number_of_workers_of_a_job_is_in_its_profile() -> None:
    (profile,) = analyze(recorded(USE, num_workers=1, prefetch_factor=2), "step_profile").tables[0].to_dicts()
    assert (profile["num_workers"], profile["prefetch_factor"]) == (1, 2)


@pytest.mark.parametrize("damage", [{"timed_step_ns": 0}, {"cores_available": "two"}, {"step_cpu_ns": None}])
def test_damaged_facts_are_none(damage: dict[str, Any]) -> None:
    assert CoreUse.of({**USE.facts(), **damage}) is None
    assert CoreUse.of(USE.facts()) == USE
