"""Memory that a rank keeps between steps under any strategy, and that a forward pass leaves for backward.

The former is its share of weights, their copies, and moments; the latter is counted from its tensors, the same on every
device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["held_bytes", "local_part", "state_bytes"]


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


def held_bytes(forward: Callable[[], object]) -> int:
    """Return the bytes that `forward` allocated and that are still referenced after it returns; views count once."""
    with _Allocations() as allocations:
        forward()
    return sum(size for storage, size in allocations.storages.values() if not storage.expired())


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Storages that ops allocate, with their sizes; storages of inputs, which views share, are not new."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = {each._cdata for each in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in inputs:
                weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self.storages[storage._cdata] = weak, storage.nbytes()
        return out


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
