"""The batches that a loop asks for while its steps are learned: their loader, and how many samples each has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from traceq.recorder.rank.loader_workers import LoaderWorkers

_MAIN_SHARE = 0.8
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class JobLoader:
    """The loader of nearly all batches: samples of a batch (0 where unknown), its settings, and its workers."""

    samples_per_batch: int = 0
    settings: Mapping[str, int] = field(default_factory=dict)
    workers: LoaderWorkers = field(default_factory=LoaderWorkers)


class JobBatches:
    """Batches by the loader that delivered them."""

    def __init__(self) -> None:
        self._loaders: dict[int, DataLoader[Any]] = {}
        self._sizes: dict[int, Counter[int]] = {}

    def add(self, loader: DataLoader[Any] | None, batch: Any) -> None:
        """Add a batch of a training step."""
        if loader is not None:
            self._loaders[id(loader)] = loader
            self._sizes.setdefault(id(loader), Counter())[_num_samples(batch)] += 1

    def clear(self) -> None:
        """Forget the loaders: the job may want to free them."""
        self._loaders.clear()
        self._sizes.clear()

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The loader of nearly all batches; None without one."""
        key = self._main_key
        return None if key is None else self._loaders[key]

    @property
    def samples_per_batch(self) -> int:
        """Samples of the usual batch of that loader, if the batches have as many as it declares; 0 where unknown."""
        key = self._main_key
        if key is None:
            return 0
        usual = self._sizes[key].most_common(1)[0][0]
        return usual if usual == _declared_size(self._loaders[key]) else 0

    @property
    def _main_key(self) -> int | None:
        totals = {key: sizes.total() for key, sizes in self._sizes.items()}
        most = max(totals, key=lambda key: totals[key], default=None)
        return most if most is not None and totals[most] >= _MAIN_SHARE * sum(totals.values()) else None


def _declared_size(loader: DataLoader[Any]) -> int:
    """Return the batch size that a loader was made with, or its batch sampler; 0 for none.

    Frameworks give torch's iterators loaders of their own, which have only what those read.
    """
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else 0


def _num_samples(batch: Any) -> int:
    """Return the first dimension of the first tensor in a batch; 0 if it has none, or cannot be looked into."""
    with suppress(Exception):
        tensor = next(_tensors(batch, _MAX_DEPTH), None)
        return tensor.size(0) if tensor is not None and tensor.dim() else 0
    return 0


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in parts:
            yield from _tensors(part, depth - 1)
