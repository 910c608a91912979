"""Ranks tell each other their times, so that each rank's trace knows all ranks' samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from traceq.model import Pairs
from traceq.runs.samples import PairLine, pairs_of

__all__ = ["exchange_pairs"]


def exchange_pairs(mine: Sequence[PairLine]) -> tuple[Pairs, ...]:
    """Pairs of all ranks, the same on every rank. A collective call."""
    ranks: list[Sequence[PairLine]] = [()] * dist.get_world_size()
    dist.all_gather_object(ranks, list(mine))
    return pairs_of(ranks)
