"""A slower loader shows in the unprofiled steps, though the short traced window lives on batches made before it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from made_sides import MANIFEST, PAIRS, paired, run_of
from statements import of_code, only

from traceq.compare.diff import diff_runs
from traceq.model import PairedSteps, Pairs, Run, Timings

PHASES = ("dataload_wait", "forward")
SAMPLED = {"worker_samples": 50, "worker_lines": json.dumps([["augment.py:42 collate", 40], ["io.py:7 read", 10]])}


def timed(arm: str, wait_us: float, *, pairs: tuple[Pairs, ...] = PAIRS, **facts: str | int) -> Run:
    """An arm whose steps wait for a batch, in which the profiler saw no difference."""
    phase_ns = np.tile(np.array([wait_us, 900]) * 1000, (1, 20, 1)).astype(np.int64)
    none = np.zeros(1, np.int64)
    times = phase_ns.sum(axis=2), phase_ns, phase_ns, np.arange(20)
    timings = Timings(
        PHASES, *times, none, none, none, num_warmup=0, by_device=False, host_step_ns=phase_ns.sum(axis=2)
    )
    manifest = replace(MANIFEST, environment={**MANIFEST.environment, **facts})
    return replace(run_of(arm, manifest=manifest, pairs=pairs), timings=timings)


def test_the_phase_that_differs_is_named_with_the_line_of_the_slower_loader() -> None:
    phase = only("unprofiled_phase", diff_runs(timed("off", 100), timed("on", 200, **SAMPLED)))
    assert (phase["phase"], phase["a_ns"], phase["b_ns"], phase["side"]) == ("dataload_wait", 100_000, 200_000, "b")
    assert "augment.py:42" in str(phase["workers"])


def test_the_faster_side_gives_no_line() -> None:
    phase = only("unprofiled_phase", diff_runs(timed("on", 200), timed("off", 100, **SAMPLED)))
    assert phase == {"phase": "dataload_wait", "a_ns": 200_000, "b_ns": 100_000}


def test_a_verdict_without_a_difference_names_no_phase() -> None:
    alike = (paired("off", "on", 1000, 1000),)
    assert not of_code("unprofiled_phase", diff_runs(timed("off", 100, pairs=alike), timed("on", 200, pairs=alike)))


def test_means_that_differ_the_other_way_than_the_verdict_name_no_phase() -> None:
    """As of a few very long steps on one side."""
    diff = diff_runs(timed("off", 200), timed("on", 100))
    assert int(diff.answer.measures["delta_ns"]) > 0
    assert not of_code("unprofiled_phase", diff)


def test_phases_are_those_of_the_pairs_that_decided_and_robust_to_a_long_step() -> None:
    """Two arms beside one baseline, whose other steps ran while the machine was busy; one step of B evaluates."""

    def of_arm(arm: str, forward_us: list[int], partners: list[str]) -> Run:
        phase_ns = np.array([[[100, us] for us in forward_us]]) * 1000
        run, num = timed(arm, 0), len(forward_us)
        assert run.timings is not None
        times = phase_ns.sum(axis=2)
        steps = PairedSteps(np.arange(num) % 20, np.arange(num) % 2 ^ (arm == "on"), tuple(partners))
        timings = replace(
            run.timings, step_ns=times, phase_ns=phase_ns, host_phase_ns=phase_ns, host_step_ns=times, of_pairs=steps
        )
        return replace(run, timings=timings)

    off = of_arm("off", [900] * 20 + [5000] * 20, ["on"] * 20 + ["other"] * 20)
    on = of_arm("on", [1000] * 19 + [90_000], ["off"] * 20)
    assert only("unprofiled_phase", diff_runs(off, on)) == {"phase": "forward", "a_ns": 900_000, "b_ns": 1_000_000}
