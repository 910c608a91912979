"""What is once in public traces whose owners' jobs showed what it was."""

from __future__ import annotations

import pytest
from paths import SHARED

import traceq
from traceq.analysis.registry import analyze
from traceq.causes.host_line import ONCE
from traceq.facts.stalls.idle_time import lost_once
from traceq.facts.timeline.once import OnceKind, once
from traceq.facts.timeline.time_partition import lost_once_ns
from traceq.kineto.read import read_trace
from traceq.model import Run, Trace

REPORTS = SHARED / "reports" / "traces"
pytestmark = pytest.mark.skipif(not REPORTS.is_dir(), reason=f"no {REPORTS}")
MS = 1_000_000


def trace_of(name: str) -> Trace:
    return read_trace(REPORTS / f"{name}.json.gz")


def lost_ms(trace: Trace) -> dict[OnceKind, tuple[str, float]]:
    """Name and ms by kind, of what is lost."""
    return {each.kind: (each.name, each.ns / MS) for each in lost_once(trace)}


def codes(trace: Trace) -> dict[str, int]:
    return {each.code: each.ns for each in analyze(Run("", (trace,)), "partition").findings}


@pytest.mark.parametrize(("name", "pause_ms"), [("window-first", 292.7), ("jit-pause-b512", 292.3)])
def test_torchscript_compiles_in_one_pause(name: str, pause_ms: float) -> None:
    trace = trace_of(name)
    assert lost_ms(trace)[OnceKind.PAUSE] == ("delta_r2", pytest.approx(pause_ms, abs=0.1))
    assert lost_ms(trace)[OnceKind.KERNEL_LOADING][0] == "aten::conv1d"


def test_after_a_pause_the_device_is_busy() -> None:
    trace = trace_of("jit-pause-b512")
    (claim,) = (each for each in analyze(Run("", (trace,)), "partition").findings if each.code == "cold_start")
    assert claim.measures["busy_after_pct"] == pytest.approx(98.8, abs=0.05)
    assert claim.measures["after_ns"] == pytest.approx(85.3e6, rel=1e-3)
    assert "host_bound" not in codes(trace)


def test_a_later_window_of_that_process_has_nothing_once() -> None:
    assert len(once(trace_of("window-last")).parts) == 0


def test_what_only_one_window_has_once_is_one_cause() -> None:
    diff = traceq.diff(REPORTS / "window-first.json.gz", REPORTS / "window-last.json.gz")
    assert diff.traced is not None
    (cause,) = (each for each in diff.causes if each.name == ONCE)
    assert cause.delta_ns == pytest.approx(-lost_once_ns(trace_of("window-first")), rel=0.01)
    others_ns = sum(abs(each.delta_ns) for each in diff.causes if each is not cause)
    assert others_ns < 0.03 * abs(diff.traced.delta_ns)


def test_the_first_allocation_starts_the_device() -> None:
    """The first of 20 calls takes 3,772.6 ms, the others 0.3 at most."""
    trace = trace_of("cold-start-no-device-rows-4060")
    assert lost_ms(trace) == {OnceKind.DEVICE_START: ("aten::to", pytest.approx(3772.6, abs=0.1))}
    assert list(codes(trace)) == ["cold_start", "host_op"]


def test_the_first_launch_is_an_embedding_on_a_device_that_has_the_model_already() -> None:
    trace = trace_of("moe-nan-checks-a100")
    assert lost_ms(trace)[OnceKind.KERNEL_LOADING] == ("aten::embedding", pytest.approx(412, abs=0.5))
    assert "host_bound" not in codes(trace)
    assert codes(trace)["device_bound"] == pytest.approx(559 * MS, rel=0.01)
