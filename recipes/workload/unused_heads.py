"""A model with unused heads, as left behind by past experiments."""

from __future__ import annotations

from torch import Tensor, nn

from traceq.recipes.workload.data import Sample
from traceq.recipes.workload.model import Size, VisionLanguageAction

__all__ = ["WithUnusedHeads"]


class WithUnusedHeads(nn.Module):
    """A policy with an auxiliary head that the loss ignores and a head that the loss multiplies by zero."""

    def __init__(self, size: Size, frozen_encoder: bool) -> None:
        super().__init__()
        self.policy = VisionLanguageAction(size)
        self.auxiliary = nn.Linear(size.state_size, size.action_size, dtype=size.weights)
        self.gated = nn.Linear(size.state_size, size.action_size, dtype=size.weights)
        if frozen_encoder:
            self.policy.vision.requires_grad_(False)

    def forward(self, batch: Sample) -> Tensor:
        state = batch.state.to(self.gated.weight.dtype)
        loss: Tensor = self.policy(batch) + (0.0 * self.gated(state)).float().mean()
        return loss
