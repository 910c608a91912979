"""Outlier checks of a batch: as trainers write it, and one that fetches its result less often."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DeferredCheck", "outlier_seen"]


def outlier_seen(actions: Tensor, state: Tensor, threshold: float) -> bool:
    """Return whether any value exceeds the threshold; blocks the host. A threshold <= 0 disables the check."""
    if threshold <= 0:
        return False
    largest = torch.cat([actions.abs().max().view(1), state.abs().max().view(1)])
    return bool((largest > threshold).any())


@dataclass(slots=True)
class DeferredCheck:
    """The same check, with its result kept on the device and fetched every `every` steps."""

    every: int
    seen: Tensor
    num_steps: int = 0

    def outlier_seen(self, actions: Tensor, state: Tensor, threshold: float) -> bool:
        """Return whether any value exceeded the threshold since the last fetch; False on the steps in between."""
        largest = torch.cat([actions.abs().max().view(1), state.abs().max().view(1)])
        self.seen.logical_or_((largest > threshold).any())
        self.num_steps += 1
        if self.num_steps % self.every:
            return False
        result = bool(self.seen)
        self.seen.zero_()
        return result
