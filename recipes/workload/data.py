"""Synthetic robot episodes: deterministic by index, nothing to download."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["Episodes", "Sample"]


class Sample(NamedTuple):
    """One sample or a batch of samples: `image` [3, H, W] float, `text` [L] int64, `state` [S], `actions` [T, A]."""

    image: Tensor
    text: Tensor
    state: Tensor
    actions: Tensor

    def to(self, device: torch.device) -> Sample:
        """Return the sample on the device; copies from pinned memory do not block."""
        return Sample(*(field.to(device, non_blocking=True) for field in self))


@dataclass(frozen=True, slots=True)
class Episodes(Dataset[Sample]):
    """Endless samples: the i-th is drawn from (seed, rank, i), after a delay of `load_us` microseconds."""

    image_size: int
    text_length: int
    vocabulary: int
    state_size: int
    horizon: int
    action_size: int
    seed: int
    rank: int
    load_us: int = 0

    def batch(self, size: int) -> Sample:
        """Return the first `size` samples as a batch, loaded in the calling process."""
        return Sample(*map(torch.stack, zip(*(self[index] for index in range(size)), strict=True)))

    def __getitem__(self, index: int) -> Sample:
        if self.load_us:
            time.sleep(self.load_us * 1e-6)
        generator = torch.Generator().manual_seed((self.seed * 1009 + self.rank) * 2**32 + index)
        return Sample(
            image=torch.randn(3, self.image_size, self.image_size, generator=generator),
            text=torch.randint(self.vocabulary, (self.text_length,), generator=generator),
            state=torch.randn(self.state_size, generator=generator),
            actions=torch.randn(self.horizon, self.action_size, generator=generator),
        )
