"""The loss of a step is that of its last backward, and belongs to the arm that the step ran."""

from __future__ import annotations

import random
import re

import pytest

pytest.importorskip("torch", reason="losses are tensors")

import torch

from traceq.recorder.jobs import backwards
from traceq.recorder.jobs.backwards import LossByArm, loss_texts

pytestmark = pytest.mark.torch


def test_losses_of_both_arms_are_averaged_over_steps_and_ranks() -> None:
    losses = LossByArm()
    for arm, values in (("a", (1.0, 3.0)), ("b", (5.0, float("nan"))), ("a", (8.0,))):
        for value in values:
            losses.note(torch.tensor([99.0], requires_grad=True))  # of an accumulated batch before
            losses.note([torch.tensor(value)])
            losses.end_step(arm)
    losses.end_step("a")  # a step without a backward
    moments = losses.moments("a")
    assert moments["a"] == (3, 12.0, 74.0, 0, 0, 0)
    assert moments["b"] == pytest.approx((1, 5.0, 25.0, 1, 1 / 3, 1 / 9))  # a has 3 before it, 8 two steps after it
    texts = loss_texts([moments, {"a": (1, 4.0, 16.0, 0, 0, 0)}], "a")
    assert texts == {"a": "4, sd 2.5", "b": "5, sd 0"}  # one difference has no error


def test_a_loss_that_falls_is_compared_at_the_same_time() -> None:
    """Arm b runs later than a in the mean, so its mean loss is lower, whatever it does: it is 2 higher."""
    losses, rng = LossByArm(), random.Random(0)
    arms = [*"aaaa", *"cc", *"aa", *"bb", *(arm for _ in range(100) for arm in rng.sample("ab", 2)), *"bb"]
    for step, arm in enumerate(arms):
        losses.note(torch.tensor(1_000.0 - 4 * step + 2 * (arm == "b") + rng.gauss(0, 0.1)))
        losses.end_step(arm)
    text = loss_texts([losses.moments("a")], "a")["b"]
    delta, error = (float(number) for number in re.findall(r"^\+([\d.]+) \(standard error ([\d.]+)\) from a ", text)[0])
    assert delta == pytest.approx(2, abs=0.05)
    assert 0.1 / 100**0.5 < error < 0.3 / 100**0.5


def test_without_a_baseline_nothing_is_compared() -> None:
    losses = LossByArm()
    for value in (1.0, 2.0):
        losses.note(torch.tensor(value))
        losses.end_step("b")
    assert loss_texts([losses.moments("a")], "a") == {"b": "1.5, sd 0.5"}


def test_a_backward_of_no_loss_is_none() -> None:
    losses = LossByArm()
    for tensors in (torch.ones(2), [], None, (torch.ones(3), torch.ones(1))):
        losses.note(tensors)
        losses.end_step("a")
    assert losses.moments("a") == {}
    assert loss_texts([{}, {}], "a") == {}


class OnGpu(torch.Tensor):
    """A loss on a device, here in memory of the host."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]


def test_a_loss_of_a_device_is_kept_before_a_graph_writes_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replay of a CUDA graph has the same output."""
    output, losses = torch.ones(1).as_subclass(OnGpu), LossByArm()
    for value, is_captured in ((1.0, False), (2.0, False), (4.0, True)):
        output.fill_(value)
        monkeypatch.setattr(backwards, "is_capturing", lambda is_captured=is_captured: is_captured)
        losses.note(output)
        losses.end_step("a")
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    assert losses.moments("a") == {"a": (2, 3.0, 5.0, 0, 0, 0)}
    assert len(waits) == 1


class Sharded(torch.Tensor):
    """A loss of which this rank holds a part; other ops than these are refused."""

    def to_local(self) -> torch.Tensor:
        return torch.tensor(3.0)

    def detach(self) -> Sharded:
        return self

    def reshape(self, *shape: object) -> torch.Tensor:
        raise RuntimeError("sharding propagation failed")


def test_of_a_sharded_loss_the_part_of_this_rank_counts() -> None:
    losses = LossByArm()
    losses.note(torch.ones(1).as_subclass(Sharded))
    losses.end_step("a")
    assert losses.moments("a") == {"a": (1, 3.0, 9.0, 0, 0, 0)}
