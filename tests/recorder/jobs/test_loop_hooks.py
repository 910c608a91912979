"""What the replaced functions report where the job raises in the middle."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest

pytest.importorskip("torch", reason="hooks are torch's")

import torch

from traceq.recorder.jobs.loop_hooks import LoopHooks
from traceq.recorder.jobs.phase_stack import Begin
from traceq.recorder.tracing.line_samples import WorkerSamples

pytestmark = pytest.mark.torch


class Noting:
    """An observer and stack that keeps which phases are open, and those that have ended."""

    is_learning = True

    def __init__(self) -> None:
        self.thread = get_ident()
        self.open: list[str] = []
        self.ended: list[str] = []

    def phase(self, name: str, event: str = "") -> Begin:
        def begin(*_: object) -> int | None:
            if self.thread != get_ident():
                return None
            self.open.append(name)
            return len(self.open) - 1

        return begin

    def end(self, depth: int) -> None:
        self.ended += self.open[depth:]
        del self.open[depth:]

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_an_optimizer_that_raises_ends_its_phase_at_its_next_step(tmp_path: Path) -> None:
    """The job goes on: each step is a phase of its own, and none is left open."""
    observer = Noting()
    hooks = LoopHooks(observer, observer, WorkerSamples(tmp_path))
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    hooks.install()
    try:
        for fails in (True, False, True, False):
            with suppress(ZeroDivisionError):
                optimizer.step(lambda fails=fails: 1 / 0 if fails else 0.0)
        assert observer.ended == ["optimizer"] * 4
        assert observer.open == []
    finally:
        hooks.remove()


def test_an_optimizer_whose_end_is_compiled_does_not_stay_in_its_step(tmp_path: Path) -> None:
    """Torch compiles the hook at the end alone once it no longer compiles the step around it."""
    observer = Noting()
    hooks = LoopHooks(observer, observer, WorkerSamples(tmp_path))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    left: list[bool] = []
    observer.optimizer_left = lambda: left.append(True)  # type: ignore[attr-defined]
    for _ in range(8):
        hooks._before_step(optimizer)
    assert len(left) == 5
    assert observer.open == []


def test_a_gradient_in_the_middle_of_a_step_is_a_phase(tmp_path: Path) -> None:
    """As that of a penalty, of an inner loop, or of torch.func."""
    observer = Noting()
    hooks = LoopHooks(observer, observer, WorkerSamples(tmp_path))
    weight = torch.ones(2, requires_grad=True)
    hooks.install()
    try:
        (gradient,) = torch.autograd.grad(weight.square().sum(), weight, create_graph=True)
        gradient.sum().backward()
        torch.func.grad(lambda value: value.square().sum())(torch.ones(2))
        assert observer.ended == ["autograd_grad", "backward", "autograd_grad"]
    finally:
        hooks.remove()


def test_a_loop_without_a_backward_is_watched_from_its_first_gradient(tmp_path: Path) -> None:
    observer = Noting()
    hooks = LoopHooks(observer, observer, WorkerSamples(tmp_path))
    began: list[torch.Tensor] = []
    observer.backward_began = began.append  # type: ignore[attr-defined]
    weight = torch.ones(2, requires_grad=True)
    hooks.install()
    try:
        loss = weight.sum()
        torch.autograd.grad(loss, weight)
        assert began == []
        observer.thread = None  # type: ignore[assignment]
        loss = weight.sum()
        torch.autograd.grad(loss, weight)
        assert began == [loss]
    finally:
        hooks.remove()
