"""What a rank keeps between steps under any strategy: its share of weights, of their copies, and of moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

__all__ = ["local", "state_bytes"]


def local(tensor: Any) -> torch.Tensor:
    """The part of a parameter or of its state that lies on this rank."""
    found: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else getattr(tensor, "ds_tensor", tensor)
    return found  # `ds_tensor` is what DeepSpeed calls a shard


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of weights and of what the optimizer steps on and remembers, after a step; shared memory counts once."""
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    remembered = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*model.parameters(), *stepped, *(value for value in remembered if isinstance(value, torch.Tensor))]
    storages = (local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
