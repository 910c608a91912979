"""The model as it looks after a year of experiments: heads that nothing reads any more."""

from __future__ import annotations

from torch import Tensor, nn

from traceq.recipes.workload.data import Sample
from traceq.recipes.workload.model import Size, VisionLanguageAction

__all__ = ["WithLeftovers"]


class WithLeftovers(nn.Module):
    """A policy beside an auxiliary head that the loss leaves out and a head behind a gate that is shut."""

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
