"""Gradients that a step accumulates are reduced once, and what the optimizer reads is what it would read without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="toggles change torch")

import torch
from single_rank_group import single_rank_group
from torch.nn.parallel import DistributedDataParallel

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import Job, applicable_toggles, create_toggle

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with single_rank_group():
        yield


METHODS = ("_pre_forward", "_post_forward")


class Training:
    """Steps of some passes; `step` returns how many collectives each issues."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(torch.nn.Linear(4, 4))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)  # type: ignore[call-arg]
        self.losses: list[float] = []

    def job(self, num_passes: int) -> Job:
        return Job([self.model], [self.optimizer], num_passes=num_passes)

    def passes(self, number: int) -> None:
        for index in range(number):
            loss = self.model(torch.full((2, 4), 1.0 + index)).square().mean()
            loss.backward()
            self.losses.append(loss.item())

    def step(self, num_passes: int = 4) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            self.passes(num_passes)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return sum(event.name == "c10d::allreduce_" for event in profiler.events())


def test_the_last_pass_alone_reduces_and_losses_are_the_same() -> None:
    bare, toggled = Training(), Training()
    toggle = create_toggle("@no_sync", ("default", "on"), toggled.job(4))
    numbers = []
    for number in (0, 1, 1, 0):
        toggle.apply(number)
        bare.step()
        numbers.append(toggled.step())
    assert numbers == [4, 1, 1, 4]
    toggle.apply(1)
    toggle.restore()
    assert (bare.step(), toggled.step()) == (4, 4)
    assert toggled.losses == bare.losses
    assert not any(hasattr(getattr(DistributedDataParallel, name), "__wrapped__") for name in METHODS)


def test_a_shorter_step_reduces_before_the_optimizer_reads_its_gradients() -> None:
    bare, toggled = Training(), Training()
    toggle = create_toggle("@no_sync", ("default", "on"), toggled.job(4))
    toggled.step()
    bare.step()
    toggle.apply(1)
    assert toggled.step(num_passes=2) == 2  # one for each parameter
    assert toggled.step(num_passes=5) == 2  # in the fourth pass, and in the one behind it
    bare.step(2)
    bare.step(5)
    assert toggled.losses == bare.losses
    toggle.restore()


def test_a_job_in_no_sync_itself_stays_in_it() -> None:
    training = Training()
    toggle = create_toggle("@no_sync", ("default", "on"), training.job(4))
    training.step()
    toggle.apply(1)
    with training.model.no_sync():
        training.passes(3)
        assert not training.model.require_backward_grad_sync
    assert training.step(1) == 1
    toggle.restore()


class TwoPhases(torch.optim.SGD):
    """As of sharpness-aware minimization: the first pass moves the weights, where the gradients of all ranks point."""

    def first_step(self) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter += 0.1 * parameter.grad


def test_a_pass_whose_gradients_are_used_at_once_is_reduced() -> None:
    training = Training(TwoPhases)
    toggle = create_toggle("@no_sync", ("default", "on"), training.job(2))
    toggle.apply(1)
    for _ in range(2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            training.passes(1)
            training.optimizer.first_step()  # type: ignore[attr-defined]
            training.passes(1)
            training.optimizer.step()
        assert sum(event.name == "c10d::allreduce_" for event in profiler.events()) == 2
    assert toggle.no_effect == "the weights change between the passes of a step"  # type: ignore[attr-defined]
    toggle.restore()


def test_it_is_silent_where_no_step_accumulates() -> None:
    training = Training()
    assert applicable_toggles(training.job(4))["@no_sync"] == ("default", "on")
    assert "@no_sync" not in applicable_toggles(training.job(1))
    with pytest.raises(UsageFault, match="wrapped in DistributedDataParallel"):
        create_toggle("@no_sync", ("default", "on"), Job([torch.nn.Linear(2, 2)], [training.optimizer], num_passes=4))


class Counting(torch.nn.Module):
    """A layer with a buffer, which DDP broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.BatchNorm1d(4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch)


def broadcasts(model: torch.nn.Module) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        model(torch.ones(2, 4)).sum().backward()
    return sum(event.name == "c10d::broadcast_" for event in profiler.events())


def test_buffers_are_broadcast_or_not() -> None:
    model = DistributedDataParallel(Counting())
    before = [broadcasts(model) for _ in range(3)][-1]  # in the second step ranks agree on buckets
    toggle = create_toggle("@ddp", ("default", "broadcast_buffers:off"), Job([model], []))
    numbers = []
    for number in (1, 0, 1):
        toggle.apply(number)
        assert toggle.fault(number) == ""
        numbers.append(broadcasts(model))
    toggle.restore()
    assert before > 0
    assert numbers == [0, before, 0]
    assert broadcasts(model) == before
    assert "@ddp" not in applicable_toggles(Job([DistributedDataParallel(torch.nn.Linear(2, 2))], []))
