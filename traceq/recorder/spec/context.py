"""The context of a recipe's `build`: this rank's device and world, phases, a verified wrapper, and batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, MutableMapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from traceq.errors import RecordingFailed
from traceq.model import BUILT_APART

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from traceq.recorder.spec.phases import Phases

_LOADER_TIMEOUT_S = 90
"""Without a timeout, a worker whose sending thread died (TMPDIR too long for a socket's name) blocks forever."""


@dataclass(frozen=True, slots=True)
class Context:
    """The rank that executes a recipe, as `build` sees it.

    `facts` are written into the manifest's environment. `steps_per_half` steps of an arm run before the next arm.
    `say` prints a line for the user, on rank 0 only; do not call it while steps are timed. `arm` is the arm of this
    process, to which `facts` belong; "" if all arms share the process.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    phase: Phases
    steps_per_half: int = 1
    facts: MutableMapping[str, str | int | float] = field(default_factory=dict)
    say: Callable[[str], None] = print  # into the rank's log
    arm: str = ""
    loaders: dict[Hashable, Iterator[Any]] = field(default_factory=dict)

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return the model on the device, in DDP if there are several ranks.

        The wrapper is noted in the facts. Raises RecordingFailed if DDP does not span all ranks.
        """
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
        collate: Callable[[Any], Any] | None = None,
    ) -> Iterator[Any]:
        """Return endless batches of a DataLoader with workers; both halves of a pair get the same batches.

        A dataset with a length is read again and again, of another one `dataset[i]` for every i >= 0; the dataset
        itself has to differ between ranks. Each worker prefetches up to `prefetch_factor` batches. Calls with equal
        arguments return the same iterator: arms that are built separately share the workers, and get the same batches.
        `collate` makes a batch of samples; torch's by default.
        """
        arguments = (dataset, batch_size, num_workers, prefetch_factor, batches_per_step, collate)
        try:
            hash(arguments)
        except TypeError:  # an unhashable dataset is not shared
            return self._loader(*arguments)
        if arguments not in self.loaders:
            self.loaders[arguments] = self._loader(*arguments)
        return self.loaders[arguments]

    def separate_builds(self, *arms: str) -> None:
        """Note arms with separate models: they also differ in memory layout, which their diff points out."""
        self.facts[BUILT_APART] = " ".join(arms)

    def _loader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        num_workers: int,
        prefetch_factor: int,
        batches_per_step: int,
        collate: Callable[[Any], Any] | None,
    ) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        from traceq.recorder.process.child_processes import die_with_parent

        loader = DataLoader(
            dataset,
            batch_sampler=PairedBatches(batch_size, self.steps_per_half * batches_per_step, _length(dataset)),
            num_workers=num_workers,
            collate_fn=collate,
            prefetch_factor=prefetch_factor if num_workers else None,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=die_with_parent,
            timeout=_LOADER_TIMEOUT_S if num_workers else 0,
        )
        return iter(loader)


@dataclass(frozen=True, slots=True)
class PairedBatches:
    """Indices of endless batches: the batches of one half, repeated for the other half of the pair, then the next.

    `length`: the number of samples after which they begin again, None for never.
    """

    batch_size: int
    batches_per_half: int
    length: int | None = None

    def __iter__(self) -> Iterator[list[int]]:
        for pair in count():
            for _ in range(2):
                for batch in range(self.batches_per_half):
                    first = (pair * self.batches_per_half + batch) * self.batch_size
                    indices = range(first, first + self.batch_size)
                    yield [index % self.length for index in indices] if self.length else list(indices)


def _length(dataset: Dataset[Any]) -> int | None:
    try:
        return len(dataset)  # type: ignore[arg-type]  # a map-style dataset may have none
    except (NotImplementedError, TypeError):
        return None
