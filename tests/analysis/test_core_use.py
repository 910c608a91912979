"""Who shares the cores with a step: its own loader workers, or processes outside the job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builder import build, op, step

from traceq.analysis.registry import analyze
from traceq.claims.claim import LOW, Basis, Claim
from traceq.model import Arm, CoreUse, Manifest, Run
from traceq.runs.step_log import StepLine, timings_of

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


def claims(run: Run) -> dict[str, Claim]:
    reports = analyze(run, "loader"), analyze(run, "dataload")
    return {claim.code: claim for report in reports for claim in report.findings}


def rows(run: Run) -> list[dict[str, Any]]:
    return next(table for table in analyze(run, "loader").tables if table.key == "core_use").to_dicts()


def test_a_busy_worker_and_two_threads_contend_for_two_cores() -> None:
    claim = claims(recorded(USE))["contended_cores"]
    assert (claim.ns, claim.remedy, claim.gain, claim.basis) == (
        30 * MS,
        "less_loading_or_threads",
        (0, 30 * MS),
        Basis(63, True),
    )
    assert claim.measures == {
        "wait_ns": 30 * MS,
        "share_pct": 30,
        "num_cores": 2,
        "num_threads": 2,
        "num_workers": 1,
        "busy_pct": 68,
        "runnable_pct": 97,
    }


LINES = json.dumps([["a.py:24 clip", 40], ["a.py:21 clip", 38], ["a.py:24 crop", 12], ["b.py:24 clip", 5]])


def test_the_function_that_workers_are_in_comes_first_in_the_advice() -> None:
    claim = claims(recorded(USE, worker_samples=100, worker_lines=LINES))["contended_cores"]
    places = claim.measures["function"], claim.measures["workers_pct"], claim.measures["num_samples"]
    assert (claim.subject.line, places) == ("a.py:24", ("clip", 78, 100))


@pytest.mark.parametrize(
    ("num", "lines"),
    [
        (3, json.dumps([["collate.py:401 default_collate", 2], ["a.py:24 clip", 1]])),
        *(
            (100, lines)
            for lines in ("", "[]", "7", '[["a.py:24 clip", 300]]', '[["a.py:24 clip", null]]', '[["x", -1]]')
        ),
    ],
)
def test_too_few_or_damaged_samples_name_no_line(num: int, lines: str) -> None:
    claim = claims(recorded(USE, worker_samples=num, worker_lines=lines))["contended_cores"]
    assert (claim.subject.line, claim.measures.get("num_samples")) == ("", None)


def test_a_starved_step_without_a_free_core_is_not_told_to_take_more_workers() -> None:
    assert claims(recorded(USE, wait_ms=20))["starved"].remedy == "no_free_core"
    assert claims(recorded(replace(USE, cores_available=4), wait_ms=20))["starved"].remedy == ""


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
    assert claims(recorded(replace(USE, **change))) == {}


def test_a_thread_waits_no_longer_than_the_step_however_many_wait() -> None:
    """Beside one torch thread, those of gloo, of autograd and of pinned memory wait, too."""
    use = replace(USE, cores_available=1, step_core_wait_ns=210 * MS, thread_core_wait_ns=50 * MS)
    claim = claims(recorded(use, num_threads=1))["contended_cores"]
    assert (claim.ns, claim.measures["share_pct"], claim.remedy) == (50 * MS, 50, "less_loading")


def test_one_thread_beside_one_worker_has_a_core_of_its_own() -> None:
    assert claims(recorded(USE, num_threads=1)) == {}


def test_two_ranks_on_a_host_share_its_cores() -> None:
    use = replace(USE, cores_available=4, ranks_per_host=2)
    assert claims(recorded(use))["contended_cores"].measures["num_workers"] == 1


OF_RANKS = {"ranks_per_host": 2, "step_cpu_ns": 77 * MS, "step_core_wait_ns": 52 * MS, "thread_core_wait_ns": 17 * MS}


@pytest.mark.parametrize("worker_ns", [0, 3 * MS])
def test_workers_that_hardly_run_are_not_why_the_threads_of_two_ranks_wait(worker_ns: int) -> None:
    """Of two ranks on gloo a thread waits as long without a worker (measured: 13.8 % of a step, with two 13.2 %)."""
    workers = {"loader_workers": bool(worker_ns), "worker_cpu_ns": worker_ns, "worker_core_wait_ns": 5 * worker_ns // 3}
    claim = claims(recorded(replace(USE, **OF_RANKS, **workers), num_threads=1))["contended_cores"]
    assert (claim.ns, claim.remedy, claim.measures["num_ranks"]) == (17 * MS, "more_cores", 2)
    assert claim.measures["training_cores_mean"] == pytest.approx(2.58)
    assert claim.gain is None, "more cores are no change of the job"


def test_more_torch_threads_than_cores_are_told_to_be_fewer() -> None:
    use = replace(USE, loader_workers=0, worker_cpu_ns=0, worker_core_wait_ns=0, step_core_wait_ns=120 * MS)
    assert claims(recorded(use, num_threads=4))["contended_cores"].remedy == "fewer_threads_or_more_cores"
    assert "contended_cores" not in claims(recorded(replace(use, other_busy_cores=0.5), num_threads=4))


def test_threads_contend_on_a_busy_machine_if_they_want_more_than_others_take() -> None:
    """Eight torch threads of a rank would keep 3.5 of two cores busy, others keep 1."""
    use = replace(USE, loader_workers=0, worker_cpu_ns=0, worker_core_wait_ns=0, step_core_wait_ns=220 * MS)
    by_code = claims(recorded(replace(use, other_busy_cores=1.0), num_threads=8))
    assert by_code.keys() == {"busy_machine", "contended_cores"}
    assert by_code["contended_cores"].gain == (0, 30 * MS)


def test_a_machine_that_others_use_is_called_busy_and_the_workers_are_not_blamed() -> None:
    """And it comes after what the job could do."""
    busy = claims(recorded(replace(USE, other_busy_cores=1.6, worker_cpu_ns=10 * MS)))
    assert {code: claim.severity for code, claim in busy.items()} == {"busy_machine": LOW}
    assert busy["busy_machine"].measures["other_cores_mean"] == 1.6


@pytest.mark.parametrize(("wait_ms", "thread_wait_ms", "is_all"), [(2, 0, True), (50, 0, False), (2, 17, False)])
def test_ops_of_traced_steps_are_not_all_where_unprofiled_ones_wait(
    wait_ms: int, thread_wait_ms: int, is_all: bool
) -> None:
    use = replace(USE, worker_cpu_ns=0, other_busy_cores=1.0, thread_core_wait_ns=thread_wait_ms * MS)
    run = replace(recorded(use, wait_ms=wait_ms), traces=(build(step(0, 1000), op("aten::mm", 0, 950)),))
    (finding,) = (each for each in analyze(run, "partition").findings if each.code == "cpu_bound")
    assert (finding.remedy == "only_compute") == is_all


@pytest.mark.parametrize(("num_threads", "is_told"), [(1, False), (2, True)])
def test_fewer_threads_are_a_comparison_where_others_leave_fewer_cores(num_threads: int, is_told: bool) -> None:
    """An RL job of two threads on two cores, one of which is busy: 198 ms per step, 13.2 ms with one thread."""
    run = recorded(replace(USE, other_busy_cores=1.0, worker_cpu_ns=0), num_threads=num_threads)
    assert (claims(run)["busy_machine"].remedy == "fewer_threads") == is_told


def test_the_title_says_that_times_are_those_of_a_rank_of_several() -> None:
    run = recorded(replace(USE, ranks_per_host=2))
    assert run.manifest is not None
    (view,) = analyze(replace(run, manifest=replace(run.manifest, num_ranks=4)), "loader").views
    assert "per rank" in view.title
    (of_one,) = analyze(recorded(USE), "loader").views
    assert "per rank" not in of_one.title


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
