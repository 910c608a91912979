"""Phases of a loop do not nest: each moment belongs to the innermost one."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

pytest.importorskip("torch", reason="phases are ranges of torch's profiler")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

from traceq.recorder.jobs import phase_stack
from traceq.recorder.jobs.phase_stack import PhaseStack
from traceq.recorder.spec import phases
from traceq.recorder.spec.phases import Phases

pytestmark = pytest.mark.torch


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, ns, which the test sets."""
    now = [0]
    for module in (phase_stack, phases):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])
    return now


class Tracker:
    """Notes all events; a step begins with each F."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def add(self, event: str) -> bool:
        self.events.append(event)
        return event == "F"


def stack_of(phases: Phases, tracker: Any, begin_step: Callable[[], None] = lambda: None) -> PhaseStack:
    stack = PhaseStack(tracker, begin_step)
    stack.phases, stack.thread = phases, get_ident()
    return stack


def begin(stack: PhaseStack, name: str, event: str = "") -> int:
    depth = stack.phase(name, event)()
    return len(stack._open) if depth is None else depth


def test_a_phase_inside_another_interrupts_it(now: list[int]) -> None:
    """An optimizer whose closure runs the forward: what is left is its own, the begin of a step nobody's."""

    def begin_step() -> None:
        now[0] += 1000

    phases, tracker = Phases(), Tracker()
    stack = stack_of(phases, tracker, begin_step)
    outer = begin(stack, "optimizer")
    now[0] += 10
    inner = begin(stack, "forward", "F")
    now[0] += 30
    stack.end(inner)
    now[0] += 5
    stack.end(outer)
    now[0] += 100
    assert phases.elapsed_ns == {"optimizer": 15, "forward": 30}
    assert tracker.events == ["F"]


def test_an_event_inside_a_phase_of_the_same_event_is_none() -> None:
    tracker = Tracker()
    stack = stack_of(Phases(), tracker)
    outer = begin(stack, "forward", "F")
    middle = begin(stack, "dataload_wait", "L")
    stack.end(begin(stack, "forward", "F"))
    stack.end(middle)
    stack.end(outer)
    stack.end(begin(stack, "forward", "F"))
    assert tracker.events == ["F", "L", "F"]


def test_what_a_backward_runs_is_part_of_it(now: list[int]) -> None:
    """An adjoint method repeats the forward there; an optimizer in backward is a phase as ever."""
    tracker, phases = Tracker(), Phases()
    stack = stack_of(phases, tracker)
    outer = begin(stack, "backward", "B")
    for name, event in (("forward", "F"), ("autograd_grad", ""), ("optimizer", "")):
        now[0] += 10
        inner = begin(stack, name, event)
        now[0] += 10
        stack.end(inner)
    stack.end(outer)
    assert phases.elapsed_ns == {"backward": 50, "optimizer": 10}
    assert tracker.events == ["B"]
    assert not stack.is_inside_model()


def test_the_end_of_a_phase_ends_those_that_an_exception_left_open(now: list[int]) -> None:
    tracker, phases = Tracker(), Phases()
    stack = stack_of(phases, tracker)
    outer = begin(stack, "forward", "F")
    now[0] += 10
    begin(stack, "backward", "B")
    now[0] += 20
    stack.end(outer)
    now[0] += 40
    stack.end(begin(stack, "backward", "B"))
    stack.end(outer)
    assert tracker.events == ["F", "B", "B"]
    assert phases.elapsed_ns == {"forward": 10, "backward": 20}
    assert phases.names == ("forward", "backward")


def test_phases_that_are_timed_from_the_middle_of_one_have_an_end(now: list[int]) -> None:
    """Steps are known at the first event of one, which may be inside the phase of an optimizer."""
    phases = Phases()

    def begin_step() -> None:
        stack.phases = phases

    stack = stack_of(Phases(), Tracker(), begin_step)
    outer = begin(stack, "optimizer")
    inner = begin(stack, "forward", "F")
    now[0] += 10
    stack.end(inner)
    now[0] += 5
    stack.end(outer)
    assert phases.elapsed_ns == {"forward": 10, "optimizer": 5}
