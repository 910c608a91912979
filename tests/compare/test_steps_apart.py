"""Two recordings of one process each: no interval, but steps that lie apart are a difference of these processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builder import annotation, build, frame, op, step
from made_sides import MANIFEST, paired, run_of
from numpy.typing import NDArray
from statements import of_code, only

from traceq.compare.diff import diff_runs
from traceq.compare.result import Diff
from traceq.model import CoreUse, Run, Timings

NUM = 40
NOISE_US = np.random.default_rng(1).normal(0, 20, (2, NUM))
QUIET = CoreUse(2, 1, 0, 1_000_000, 900_000, 0, 0, 0, 0, 0.0)
LOADER_WAIT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def recorded(run_id: str, steps_us: NDArray[np.float64], *, gpu_us: float, core_use: CoreUse | None = None) -> Run:
    """A recording with these unprofiled steps, and traced ones with a kernel of this length."""
    facts = core_use.facts() if core_use else {}
    step_ns = (1000 * steps_us).astype(np.int64)[None]
    none = np.zeros(1, np.int64)
    waits_ns = np.stack([step_ns - 600_000, np.full_like(step_ns, 600_000)], axis=2)
    times = step_ns, waits_ns, waits_ns, np.arange(step_ns.size)
    timings = Timings(
        ("dataload_wait", "forward"), *times, none, none, none, num_warmup=0, by_device=False, host_step_ns=step_ns
    )
    median_us = float(np.median(steps_us))
    pairs = (paired("off", "on", median_us, median_us),)
    manifest = replace(MANIFEST, run_id=run_id, environment={**MANIFEST.environment, **facts})
    run = run_of("off", dur=gpu_us, manifest=manifest, pairs=pairs)
    return replace(run, timings=timings)


def compared(a_us: NDArray[np.float64], b_us: NDArray[np.float64], *, more_gpu_us: float = 100) -> Diff:
    return diff_runs(recorded("r1", a_us, gpu_us=200), recorded("r2", b_us, gpu_us=200 + more_gpu_us))


def is_apart(diff: Diff) -> bool:
    assert diff.comparison is not None
    assert diff.comparison.verdict.name == "inconclusive"
    return diff.comparison.steps_apart


def test_steps_that_lie_apart_are_told_with_phase_and_causes() -> None:
    diff = compared(1000 + NOISE_US[0], 1100 + NOISE_US[1])
    assert is_apart(diff)
    assert diff.comparison is not None
    assert diff.comparison.is_seen
    measures = diff.answer.measures
    assert (diff.answer.code, measures["num_a"], measures["num_b"]) == ("steps_apart", 1, 1)
    assert only("why", diff)["reason"] == diff.comparison.verdict.reason
    assert diff.doubt is None
    assert only("cause", diff)["delta_ns"] == 100_000


@pytest.mark.parametrize("more_gpu_us", [0, 30, 300, -100])
def test_traced_steps_that_say_otherwise_are_no_evidence(more_gpu_us: float) -> None:
    diff = compared(1000 + NOISE_US[0], 1100 + NOISE_US[1], more_gpu_us=more_gpu_us)
    assert is_apart(diff)
    assert diff.doubt is not None
    assert diff.doubt.code == "unlike_unprofiled"
    assert "dataload_wait" in [each["phase"] for each in of_code("unprofiled_phase", diff)]


def test_steps_that_overlap_decide_nothing() -> None:
    diff = compared(1000 + NOISE_US[0], 1005 + NOISE_US[1])
    assert not is_apart(diff)
    assert diff.doubt is not None
    assert (diff.answer.code, diff.doubt.code) == ("inconclusive", "undecided")


def test_the_same_ops_at_another_pace_are_told_as_that() -> None:
    def processed(run_id: str, pace: float, noise_us: NDArray[np.float64]) -> Run:
        run = recorded(run_id, 1000 * pace + noise_us, gpu_us=200)
        ops = [op(f"aten::op{number}", 10 + 80 * pace * number, 70 * pace) for number in range(12)]
        steps = [step(1000 * pace * number, 1000 * pace, number) for number in range(3)]
        each = [{**row, "ts": row["ts"] + of["ts"]} for of in steps for row in ops]
        return replace(run, traces=(build(*steps, *each),))

    diff = diff_runs(processed("r1", 1, NOISE_US[0]), processed("r2", 1.1, NOISE_US[1]))
    assert is_apart(diff)
    assert int(only("pace", diff)["paced_delta_ns"]) > 0


def test_less_than_the_threshold_is_no_difference_however_regular_the_steps() -> None:
    assert is_apart(compared(1000 + NOISE_US[0] / 100, 1006 + NOISE_US[1] / 100))
    assert not is_apart(compared(1000 + NOISE_US[0] / 100, 1004 + NOISE_US[1] / 100))


def test_steps_in_bursts_are_told_by_the_means_of_fifths() -> None:
    """As of a loader whose workers fetch ahead: three steps of four have their batch."""
    waits = np.tile([0, 0, 0, 400], NUM // 4)
    assert is_apart(compared(1000 + waits + NOISE_US[0], 1010 + 3 * waits + NOISE_US[1]))


def test_equal_steps_are_rarely_apart() -> None:
    """Each fifth of one above each of the other has a chance of 2 in 252."""
    rng = np.random.default_rng(2)
    steps_us = rng.normal(1000, 20, (50, 2, NUM))
    assert sum(is_apart(compared(*pair)) for pair in steps_us) <= 2


@pytest.mark.parametrize(("b_waits_us", "others", "is_theirs"), [(80, 1.5, True), (30, 1.5, False), (80, 0.1, False)])
def test_waits_for_cores_that_other_processes_keep_are_no_difference(
    b_waits_us: int, others: float, *, is_theirs: bool
) -> None:
    waits_ns = 1000 * b_waits_us
    busy = replace(QUIET, thread_core_wait_ns=waits_ns, step_core_wait_ns=waits_ns, other_busy_cores=others)
    a = recorded("r1", 1000 + NOISE_US[0], gpu_us=200, core_use=QUIET)
    b = recorded("r2", 1100 + NOISE_US[1], gpu_us=300, core_use=busy)
    diff = diff_runs(a, b)
    assert is_apart(diff) is not is_theirs
    waits = [[each[f"core_wait_{side}_ns"] for side in "ab"] for each in of_code("busy_machine", diff)]
    assert waits == [[0, waits_ns]] * is_theirs
    swapped = diff_runs(b, a)
    assert is_apart(swapped) is not is_theirs


def test_a_busy_machine_makes_no_step_three_times_as_long() -> None:
    """A third of it are waits for a core: that makes a step 2.25 times as long at most."""
    busy = CoreUse(2, 1, 0, 3_000_000, 900_000, 0, 1_000_000, 1_000_000, 0, 1.5)
    a = recorded("r1", 1000 + NOISE_US[0], gpu_us=200, core_use=QUIET)
    assert is_apart(diff_runs(a, recorded("r2", 3000 + NOISE_US[1], gpu_us=2200, core_use=busy)))
    assert not is_apart(diff_runs(a, recorded("r2", 2200 + NOISE_US[1], gpu_us=1400, core_use=busy)))


def test_the_data_loader_has_the_line_that_makes_its_batches() -> None:
    def loads(wait_us: float) -> Run:
        frames = frame("train.py(20): main", 0, wait_us + 90), frame("data.py(14): decode", 12, wait_us - 4)
        work = annotation(LOADER_WAIT, 10, wait_us), op("aten::mm", wait_us + 20, 40)
        return Run("plain", (build(step(0, wait_us + 100), *frames, *work),))

    (cause,) = (each for each in diff_runs(loads(100), loads(400)).causes if each.name == "data loader")
    assert (cause.delta_ns, cause.line) == (pytest.approx(300_000, rel=0.05), "data.py:14 decode")
