"""Phases of a loop do not nest: each moment belongs to the innermost one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="phases are ranges of torch's profiler")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

from traceq.recorder.jobs.phase_stack import PhaseStack
from traceq.recorder.spec import phases as module
from traceq.recorder.spec.phases import Phases

pytestmark = pytest.mark.torch


def test_a_phase_inside_another_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer whose closure runs the forward: what is left is the optimizer's."""
    now = [0]
    monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])
    stack, phases = PhaseStack(), Phases()
    stack.phases = phases
    outer = stack.begin("optimizer")
    now[0] = 10
    inner = stack.begin("forward", "F")
    assert stack.has_event("F")
    now[0] = 40
    stack.end(inner)
    assert not stack.has_event("F")
    now[0] = 45
    stack.interrupt()
    now[0] = 60
    stack.resume()
    now[0] = 61
    stack.end(outer)
    assert phases.take() == {"optimizer": 16, "forward": 30}


def test_the_end_of_a_phase_ends_those_that_an_exception_left_open() -> None:
    stack, phases = PhaseStack(), Phases()
    stack.phases = phases
    outer = stack.begin("forward", "F")
    stack.begin("backward", "B")
    stack.end(outer)
    assert not stack.has_event("B")
    stack.end(outer)
    assert phases.names == ("forward", "backward")
