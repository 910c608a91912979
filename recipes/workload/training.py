"""The part of a vision-language-action training step that every experiment on it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from traceq.errors import RecordingFailed
from traceq.recipes.workload.data import Sample
from traceq.recipes.workload.fp32_masters import with_masters
from traceq.recipes.workload.metrics import gathered
from traceq.recipes.workload.model import SIZES, Size, VisionLanguageAction
from traceq.recorder import Context

__all__ = ["Training"]

ADAMW: dict[str, Any] = {"lr": 1e-4, "weight_decay": 0.01}
MAX_GRAD_NORM = 1.0
LR_WARMUP_STEPS = 100
Phase: TypeAlias = Callable[[str], AbstractContextManager[None]]


@dataclass(slots=True)
class Training:
    """Model, optimizer, schedule, data and accelerator of one rank. Random weights are the same on all ranks."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    batches: Iterator[Sample]
    accelerator: Accelerator
    device: torch.device
    autocast: bool
    batch: Sample | None = None
    loss: Tensor | None = None
    norm: Tensor | None = None
    scaler: torch.amp.GradScaler = field(default_factory=lambda: torch.amp.GradScaler(enabled=False))
    num_outliers: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        context: Context,
        size: str,
        batch_size: int,
        num_workers: int,
        seed: int,
        make: Callable[[Size], nn.Module] = VisionLanguageAction,
        prefetch_factor: int = 2,
        batches_per_step: int = 1,
        load_us: int = 0,
        **wrapping: Any,
    ) -> Training:
        """Everything on the context's device, the model that `make` makes wrapped and verified.

        `load_us`: so much longer takes each sample in the loader.
        """
        chosen = SIZES[size]
        torch.manual_seed(seed)
        with context.device:  # billions of weights take minutes to draw on the host
            made = make(chosen)
        model = context.wrap(made, **wrapping)
        optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
        episodes = replace(chosen.episodes(seed, context.rank), load_us=load_us)
        return cls(
            model=model,
            optimizer=optimizer,
            scheduler=_schedule(optimizer),
            batches=context.batches(episodes, batch_size, num_workers, prefetch_factor, batches_per_step),
            accelerator=_accelerator(context),
            device=context.device,
            autocast=chosen.autocast and context.device.type == "cuda",
        )

    def with_optimizer(self, **options: Any) -> Training:
        """Another training of the same weights on the same batches, with an AdamW and a schedule of its own."""
        optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW, **options)
        return replace(self, optimizer=optimizer, scheduler=_schedule(optimizer))

    def with_masters(self, place: torch.device) -> Training:
        """The same with an AdamW over float32 masters that lie in `place`."""
        optimizer = with_masters(self.model.parameters(), place, **ADAMW)
        return replace(self, optimizer=optimizer, scheduler=_schedule(optimizer))

    def begin(self, phase: Phase) -> None:
        """Fetch a batch and compute its loss, each in its phase."""
        with phase("dataload_wait"):
            batch = self.next_batch()
        with phase("forward"):
            self.forward(batch)

    def next_batch(self) -> Sample:
        """The loader's next batch, on its way to the device; the one before it is freed here, inside a phase."""
        self.batch = next(self.batches).to(self.device)
        return self.batch

    def count_outlier(self, seen: bool) -> None:
        """Keep count; a batch is never dropped, as other ranks would wait for it."""
        self.num_outliers += seen

    def forward(self, batch: Sample) -> None:
        """Compute the loss; the graph of the one before it is freed here, inside a phase."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            self.loss = self.model(batch)

    def finish(self, phase: Phase) -> None:
        """Everything after the forward pass, each part in its phase."""
        self.update(phase)
        with phase("sync_gather"):
            self.gather()

    def update(self, phase: Phase) -> None:
        """From the loss to new weights, each part in its phase."""
        with phase("bwd"):
            self.backward()
        self.apply(phase)

    def backward(self, share: float = 1.0) -> None:
        """Gradients of that share of the loss, added to those that are there."""
        assert self.loss is not None
        self.scaler.scale(self.loss * share if share < 1 else self.loss).backward()  # type: ignore[no-untyped-call]

    def gradients_kept(self) -> AbstractContextManager[object]:
        """In the block, ranks keep their gradients to themselves: a later backward reduces them, too."""
        no_sync = getattr(self.model, "no_sync", None)
        kept: AbstractContextManager[object] = no_sync() if no_sync is not None else nullcontext()
        return kept

    def apply(self, phase: Phase) -> None:
        """From gradients to new weights, each part in its phase."""
        with phase("unscale_clip"):
            self.scaler.unscale_(self.optimizer)
            self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        with phase("optim_step"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        with phase("zero_grad_sched"):
            self.optimizer.zero_grad(set_to_none=True)
            self.scheduler.step()

    @property
    def last_loss(self) -> Tensor:
        """Loss of the last forward pass, on the device, without its graph."""
        assert self.loss is not None
        return self.loss.detach()

    def measured(self, *, on_host: bool = True) -> dict[str, Tensor]:
        """The step's metrics on the device; `on_host` = those too that the host knows already."""
        assert self.norm is not None
        loss = self.last_loss
        found = {
            "loss": loss,
            "grad_norm": self.norm,
            "rmse": loss.sqrt(),
            "clipped": (self.norm > MAX_GRAD_NORM).float(),
        }
        if on_host:
            found["lr"] = torch.as_tensor(self.scheduler.get_last_lr()[0], device=self.device)
        return found

    def gather(self) -> None:
        """Five metrics over all ranks, one `.item()` each, as trainers do it."""
        self.metrics |= gathered(self.accelerator, self.measured())


def _schedule(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=LR_WARMUP_STEPS)


def _accelerator(context: Context) -> Accelerator:
    """An accelerator that spans all ranks: on CPUs `cpu=True`, without which each rank is alone and does not say so."""
    accelerator = Accelerator(cpu=context.device.type == "cpu")
    if accelerator.num_processes != context.world_size:
        raise RecordingFailed(f"accelerate sees {accelerator.num_processes} ranks; expected {context.world_size}")
    context.facts["accelerate_world_size"] = accelerator.num_processes
    return accelerator
