"""Memory that a rank keeps between steps under any strategy: its share of weights, their copies, and moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["local_part", "state_bytes"]


def local_part(tensor: Any) -> torch.Tensor:
    """Return the part of a parameter or of its state that the current rank holds."""
    is_sharded = hasattr(tensor, "to_local")  # a DTensor, which torch 2.4 has elsewhere
    part: torch.Tensor = tensor.to_local() if is_sharded else getattr(tensor, "ds_tensor", tensor)
    return part  # `ds_tensor` is DeepSpeed's name of a shard


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of weights, of the optimizer's parameters and of its state; shared storage counts once."""
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*model.parameters(), *updated, *(value for value in states if isinstance(value, torch.Tensor))]
    storages = (local_part(tensor).untyped_storage() for tensor in tensors)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
