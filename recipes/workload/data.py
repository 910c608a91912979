"""Synthetic robot episodes: deterministic by index, nothing to download."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

__all__ = ["PADDING", "Episodes", "Sample", "collate"]

PADDING = -1
"""Token after the end of a prompt that is shorter than the longest of its batch."""


class Sample(NamedTuple):
    """One sample or a batch of samples: `image` [3, H, W] float, `text` [L] int64, `state` [S], `actions` [T, A].

    With several cameras `image` is [C, 3, H, W]. In a batch of ragged prompts `text` is padded with PADDING.
    """

    image: Tensor
    text: Tensor
    state: Tensor
    actions: Tensor

    def to(self, device: torch.device) -> Sample:
        """Return the sample on the device; copies from pinned memory do not block."""
        return Sample(*(field.to(device, non_blocking=True) for field in self))


def collate(samples: Sequence[Sample]) -> Sample:
    """Return samples as a batch; prompts are padded to the longest."""
    image, text, state, actions = zip(*samples, strict=True)
    padded = pad_sequence(list(text), batch_first=True, padding_value=PADDING)
    return Sample(torch.stack(image), padded, torch.stack(state), torch.stack(actions))


@dataclass(frozen=True, slots=True)
class Episodes(Dataset[Sample]):
    """Endless samples: the i-th is drawn from (seed, rank, i), after a delay of `load_us` microseconds.

    `ragged`: prompts of 1 to `text_length` tokens, which need `collate`.
    """

    image_size: int
    text_length: int
    vocabulary: int
    state_size: int
    horizon: int
    action_size: int
    seed: int
    rank: int
    load_us: int = 0
    cameras: int = 1
    ragged: bool = False

    def batch(self, size: int) -> Sample:
        """Return the first `size` samples as a batch, loaded in the calling process."""
        return collate([self[index] for index in range(size)])

    def __getitem__(self, index: int) -> Sample:
        if self.load_us:
            time.sleep(self.load_us * 1e-6)
        generator = torch.Generator().manual_seed((self.seed * 1009 + self.rank) * 2**32 + index)
        views = (self.cameras,) if self.cameras > 1 else ()
        length = self.text_length
        if self.ragged:
            length = int(torch.randint(1, length + 1, (), generator=generator))
        return Sample(
            image=torch.randn(*views, 3, self.image_size, self.image_size, generator=generator),
            text=torch.randint(self.vocabulary, (length,), generator=generator),
            state=torch.randn(self.state_size, generator=generator),
            actions=torch.randn(self.horizon, self.action_size, generator=generator),
        )
