"""Parameters that DDP would wait for in vain are named with their modules, and those of gates that stay closed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="gradients are torch's")

import torch
from torch import nn

from traceq.recorder.jobs import backwards
from traceq.recorder.jobs.backwards import GradientWatch, gradient_lines

pytestmark = pytest.mark.torch


class Heads(nn.Module):
    """A head that the loss ignores, one behind a closed gate, a frozen encoder, an embedding of sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.ignored, self.gated = (nn.Linear(2, 2) for _ in range(4))
        self.words = nn.Embedding(4, 2, sparse=True)
        self.encoder.requires_grad_(False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        encoded = self.encoder(batch) + self.words(torch.tensor([1]))
        self.ignored(encoded)
        return self.head(encoded).square().mean() + 0 * self.gated(encoded).sum()


def test_every_parameter_is_what_its_gradients_are() -> None:
    model, teacher = Heads(), nn.Linear(2, 2)
    watch = GradientWatch([model, teacher])
    for _ in range(2):
        model(torch.ones(1, 2)).backward()
        model.zero_grad()
    uses = watch.uses()
    assert {name.partition(".")[0]: use for name, use in uses.items()} == {
        "encoder": "frozen",
        "head": "used",
        "ignored": "unused",
        "gated": "zero",
        "words": "used",
    }
    watch.close()
    assert not model.head.weight._post_accumulate_grad_hooks
    total, *lines = gradient_lines([uses])
    assert total.startswith("3 of 9 parameters ")
    for line, use, module in zip(
        lines, ("without a gradient", "with a gradient of zero", "frozen"), ("ignored", "gated", "encoder"), strict=True
    ):
        assert line.startswith(f"2 parameters {use}")
        assert line.endswith(f": {module} (weight, bias)")
    assert "find_unused_parameters" in lines[0]
    assert "on some rank" not in lines[0]


def test_what_is_frozen_for_one_backward_of_each_step_is_used() -> None:
    """As a discriminator is while its generator learns, also where that comes first."""
    model = nn.Linear(2, 2)
    batch = torch.ones(1, 2, requires_grad=True)
    model.requires_grad_(False)
    watch = GradientWatch([model])
    model(batch).sum().backward()
    model.requires_grad_(True)
    watch.watch()
    model(batch).sum().backward()
    model.requires_grad_(False)
    assert watch.uses() == {"weight": "used", "bias": "used"}
    watch.close()


def test_a_parameter_without_a_gradient_on_one_rank_is_unused() -> None:
    total, unused = gradient_lines([{"a.w": "used", "b": "zero"}, {"a.w": "unused", "b": "used"}])
    assert total.startswith("1 of 2 parameters ")
    assert "find_unused_parameters" in unused
    assert unused.endswith(", on some rank: a (w)")


def test_many_modules_are_counted() -> None:
    (_, line) = gradient_lines([{f"m{number}.w": "frozen" for number in range(9)}])
    assert line.endswith("m5 (w) and 3 more modules")


def test_nothing_is_said_of_a_job_without_models() -> None:
    assert list(gradient_lines([{}, {}])) == []


def test_no_gradient_is_read_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read one waits for the device, which ends the capture; what its replays compute is not known to be zero."""
    model = nn.Linear(2, 2)
    watch = GradientWatch([model])
    monkeypatch.setattr(backwards, "is_capturing", lambda: True)
    monkeypatch.setattr(backwards, "_values", None)
    model(torch.ones(1, 2)).sum().backward()
    assert watch.uses() == {"weight": "used", "bias": "used"}
    watch.close()


def test_a_gradient_that_cannot_be_read_raises_nothing_into_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("called a synchronizing CUDA operation")

    model = nn.Linear(2, 2)
    watch = GradientWatch([model])
    monkeypatch.setattr(backwards, "_values", refuse)
    model(torch.ones(1, 2)).sum().backward()
    assert watch.uses() == {"weight": "used", "bias": "used"}
    watch.close()
