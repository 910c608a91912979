"""What a recipe's `build` is given: this rank's device and world, phases, a verified wrapper, and batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from traceq.errors import RecordingFailed
from traceq.model import BUILT_APART

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from traceq.recorder.spec.phases import Phases

__all__ = ["Context", "PairedBatches"]

_LOADER_TIMEOUT_S = 90
"""A worker whose sending thread died (a TMPDIR too long for a socket's name, say) delivers nothing, and never ends."""


@dataclass(frozen=True, slots=True)
class Context:
    """This rank, as a recipe sees it. `facts` are written into the manifest's environment.

    `steps_per_half` steps run before the next arm has its turn. `say` tells whoever watches the recording a line; rank
    0 has the word, so say nothing while steps are timed. `arm` is the one that runs in this process, and whose
    `facts` these are; "" for all of them.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    phase: Phases
    steps_per_half: int = 1
    facts: dict[str, str | int | float] = field(default_factory=dict)
    say: Callable[[str], None] = print  # into the rank's log
    arm: str = ""
    loaders: dict[Hashable, Iterator[Any]] = field(default_factory=dict)

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """The model on the device, under DDP when there is more than one rank; what was got is checked and noted."""
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        model = model.to(self.device)
        self.facts["num_parameters"] = sum(parameter.numel() for parameter in model.parameters())
        if self.world_size > 1:
            devices = [self.device.index] if self.device.type == "cuda" else None
            model = DistributedDataParallel(model, device_ids=devices, **options)
            if model.process_group.size() != self.world_size:
                raise RecordingFailed(f"DDP spans {model.process_group.size()} ranks; expected {self.world_size}")
        self.facts["wrapper"] = type(model).__name__ if self.world_size > 1 else "none"
        self.facts["wrapper_world_size"] = dist.get_world_size()
        return model

    def batches(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        num_workers: int = 1,
        prefetch_factor: int = 2,
        batches_per_step: int = 1,
    ) -> Iterator[Any]:
        """Endless batches of a real loader with workers; both halves of a pair are given the same ones.

        `dataset[i]` is asked for every i >= 0; it has to differ between ranks itself. Each worker has up to
        `prefetch_factor` batches in hand. Who asks once more for the same, of the same dataset, is given the same
        iterator: arms that are built one by one are then given the same batches, too, by the same workers.
        """
        asked = (dataset, batch_size, num_workers, prefetch_factor, batches_per_step)
        try:
            hash(asked)
        except TypeError:  # such a dataset cannot be asked for twice
            return self._loader(*asked)
        if asked not in self.loaders:
            self.loaders[asked] = self._loader(*asked)
        return self.loaders[asked]

    def separate_builds(self, *arms: str) -> None:
        """Note arms that have a model each: they differ by where it lies in memory, too, and their diff says so."""
        self.facts[BUILT_APART] = " ".join(arms)

    def _loader(
        self, dataset: Dataset[Any], batch_size: int, num_workers: int, prefetch_factor: int, batches_per_step: int
    ) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        from traceq.recorder.process.processes import die_with_parent

        loader = DataLoader(
            dataset,
            batch_sampler=PairedBatches(batch_size, self.steps_per_half * batches_per_step),
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=die_with_parent,
            timeout=_LOADER_TIMEOUT_S if num_workers else 0,
        )
        return iter(loader)


@dataclass(frozen=True, slots=True)
class PairedBatches:
    """Indices of endless batches in blocks of one half; each block comes twice, once for each half of a pair."""

    batch_size: int
    batches_per_half: int

    def __iter__(self) -> Iterator[list[int]]:
        for block in count():
            for _ in range(2):
                for batch in range(self.batches_per_half):
                    first = (block * self.batches_per_half + batch) * self.batch_size
                    yield list(range(first, first + self.batch_size))
