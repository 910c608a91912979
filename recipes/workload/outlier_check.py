"""Is a batch an outlier? A check as trainers write it, and one that asks the device less often."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DeferredCheck", "outlier_seen"]


def outlier_seen(actions: Tensor, state: Tensor, threshold: float) -> bool:
    """Any value beyond the threshold, known at once: the host waits for the device. A threshold <= 0 does nothing."""
    if threshold <= 0:
        return False
    largest = torch.cat([actions.abs().max().view(1), state.abs().max().view(1)])
    return bool((largest > threshold).any())


@dataclass(slots=True)
class DeferredCheck:
    """The same check with its answer left on the device and fetched every `every` steps."""

    every: int
    seen: Tensor
    num_steps: int = 0

    def outlier_seen(self, actions: Tensor, state: Tensor, threshold: float) -> bool:
        """Any value beyond the threshold since the last answer; False on the steps in between."""
        largest = torch.cat([actions.abs().max().view(1), state.abs().max().view(1)])
        self.seen.logical_or_((largest > threshold).any())
        self.num_steps += 1
        if self.num_steps % self.every:
            return False
        answer = bool(self.seen)
        self.seen.zero_()
        return answer
