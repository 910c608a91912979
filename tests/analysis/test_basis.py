"""Findings about time hold in most steps, say which steps, and give way to unprofiled ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from builder import Event, annotation, build, op, step

from traceq.analysis.registry import analyze
from traceq.claims.claim import Basis
from traceq.model import Run, Timings, Trace

LOADING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
PHASES = ("dataload_wait", "forward", "optimizer")


def steps_waiting(*waits_us: float) -> Trace:
    """Steps of 1 ms on a host without a device, each of which first waits for its batch."""
    events: list[Event] = []
    for k, wait in enumerate(waits_us):
        start = 1000 * k
        events += [step(start, 1000, k), annotation(LOADING, start, wait), op("aten::mm", start + wait, 1000 - wait)]
    return build(*events)


def recorded(trace: Trace, phases_ms: tuple[float, float, float], num: int = 320) -> Run:
    """The trace with unprofiled steps of one rank; 5 % of noise in every phase."""
    noise = np.random.default_rng(4).normal(1, 0.05, (1, num, len(PHASES)))
    phase_ns = (noise * np.array(phases_ms) * 1e6).astype(np.int64)
    none = np.zeros(1, np.int64)
    step_ns = phase_ns.sum(axis=2)
    timings = Timings(
        PHASES, step_ns, phase_ns, phase_ns, np.arange(num), none, none, none, 0, by_device=False, host_step_ns=step_ns
    )
    return Run("run", (trace,), timings=timings)


def codes(run: Run, *names: str) -> set[str]:
    return {finding.code for name in names for finding in analyze(run, name).findings}


@pytest.mark.parametrize(
    ("waits_us", "is_finding"),
    [
        ((440, 430, 450), True),
        ((900, 0, 0), False),
        ((300, 20, 300), False),
        ((60, 60, 60), True),
        ((40, 40, 40), False),
        ((190, 260), True),  # the interval of two such steps includes 0, of one alone there is none
        ((440, 40), False),
    ],
)
def test_starved_holds_in_most_steps_and_beyond_their_scatter(waits_us: Sequence[float], is_finding: bool) -> None:
    run = Run("trace", (steps_waiting(*waits_us),))
    about_loading = codes(run, "dataload", "partition") - {"cpu_bound"}
    assert about_loading == ({"starved", "dataload_wait"} if is_finding else set())


def test_a_finding_rests_on_the_counted_steps() -> None:
    run = Run("trace", (steps_waiting(440, 430, 450),))
    findings = [finding for name in ("dataload", "partition") for finding in analyze(run, name).findings]
    assert [(finding.code, finding.ns) for finding in findings] == [("starved", 440_000), ("dataload_wait", 440_000)]
    assert {finding.basis for finding in findings} == {Basis(3)}


def test_unprofiled_steps_decide_whether_a_run_is_starved() -> None:
    """The traced steps of both runs wait for 44 %."""
    assert codes(recorded(steps_waiting(440, 430, 450), (0.4, 9, 1)), "dataload", "partition") == {"cpu_bound"}
    (finding,) = analyze(recorded(steps_waiting(440, 430, 450), (1.2, 9, 1)), "dataload").findings
    assert (finding.code, finding.ns) == ("starved", pytest.approx(1_210_000, rel=0.01))
    assert codes(recorded(steps_waiting(0, 0, 0), (1.2, 9, 1)), "dataload") == {"starved"}
    assert codes(recorded(steps_waiting(0, 0, 0), (1.2, 9, 1), num=31), "dataload") == set()


def test_one_pause_does_not_hide_what_nearly_all_unprofiled_steps_wait() -> None:
    """The mean of the steps has an interval from below 0, as one of them takes 200 ms more outside of the loader."""
    run = recorded(steps_waiting(440, 430, 450), (1.2, 9, 1), num=64)
    assert run.timings is not None
    run.timings.step_ns[0, 7] += 200_000_000
    assert codes(run, "dataload") == {"starved"}


def optimizing(closure_us: float, update_us: float) -> Trace:
    """Three steps of 1 ms in one `Optimizer.step`: first a closure of forward and backward, then the update."""
    events: list[Event] = []
    for k in range(3):
        start, half = 1000 * k, closure_us / 2
        engine = "autograd::engine::evaluate_function: MmBackward0"
        events += [
            step(start, 1000, k),
            annotation("Optimizer.step#AdamW.step", start, closure_us + update_us),
            *([op("aten::mm", start, half), op(engine, start + half, half)] if closure_us else []),
            op("aten::_foreach_addcmul_", start + closure_us, update_us),
        ]
    return build(*events)


def test_a_closure_is_not_the_optimizer() -> None:
    """Lightning runs forward and backward inside the optimizer's step."""
    with_closure = Run("trace", (optimizing(900, 50),))
    assert codes(with_closure, "optimizer") == set()
    (row,) = analyze(with_closure, "optimizer").tables[0].to_dicts()
    assert (row["implementation"], row["host_ns"], row["window_ns"]) == ("foreach", 150_000, 150_000)
    phases = {row["name"]: row["cpu_ns"] for row in analyze(with_closure, "phases").tables[0].to_dicts()}
    assert (phases["optimizer"], phases["backward"], phases["forward"]) == (150_000, 1_350_000, 1_350_000)
    assert phases["other"] == 150_000  # after the update
    assert codes(Run("trace", (optimizing(0, 150),)), "optimizer") == {"unfused_optimizer"}


def test_unprofiled_steps_decide_whether_the_optimizer_takes_long() -> None:
    trace = optimizing(0, 150)
    assert codes(recorded(trace, (0, 9.5, 0.5)), "optimizer") == set()
    (finding,) = analyze(recorded(trace, (0, 8, 2)), "optimizer").findings
    assert finding.measures["unprofiled_pct"] == pytest.approx(20, rel=0.01)
    assert finding.measures["unprofiled_ns"] == pytest.approx(2_000_000, rel=0.01)
    assert finding.measures["num_unprofiled"] == 320
