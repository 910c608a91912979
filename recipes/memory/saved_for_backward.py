"""Memory that a forward pass leaves for backward, counted from its tensors: the same on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["held_bytes"]


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
