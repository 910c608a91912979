"""The parts of a vision-language-action training step that all recipes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from traceq.errors import RecordingFailed
from traceq.recipes.workload.data import Sample, collate
from traceq.recipes.workload.metrics import gather_means
from traceq.recipes.workload.model import Size, VisionLanguageAction
from traceq.recipes.workload.parameters import EnterPhase, Precision, Prompts
from traceq.recipes.workload.precision import adamw_with_masters, sized
from traceq.recorder import Context

__all__ = ["Training"]

ADAMW: dict[str, Any] = {"lr": 1e-4, "weight_decay": 0.01}
MAX_GRAD_NORM = 1.0
LR_WARMUP_STEPS = 100


@dataclass(slots=True)
class Training:
    """Model, optimizer, schedule, data and accelerator of one rank. Initial weights are the same on all ranks."""

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
        precision: Precision = "float32_masters",
        cameras: int = 1,
        prompts: Prompts = "fixed",
        **wrapping: Any,
    ) -> Training:
        """Return a training on the context's device; the model of `make` is wrapped, and its wrapper verified.

        `load_us` slows the loader by that much per sample; `wrapping` are options of DDP. Under `precision` bfloat16
        weights and moments are bfloat16, and nothing is cast.
        """
        dimensions = sized(size, precision, cameras, prompts)
        torch.manual_seed(seed)
        with context.device:  # drawing billions of weights takes minutes on the host
            bare = make(dimensions)
        model = context.wrap(bare, **wrapping)
        optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
        padding = collate if dimensions.ragged else None
        episodes = replace(dimensions.episodes(seed, context.rank), load_us=load_us)
        return cls(
            model=model,
            optimizer=optimizer,
            scheduler=_schedule(optimizer),
            batches=context.batches(episodes, batch_size, num_workers, prefetch_factor, batches_per_step, padding),
            accelerator=_accelerator(context),
            device=context.device,
            autocast=dimensions.autocast and context.device.type == "cuda" and precision != "bfloat16",
        )

    def with_optimizer(self, **options: Any) -> Training:
        """Return a training of the same weights on the same batches, with a separate AdamW and schedule."""
        optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW, **options)
        return replace(self, optimizer=optimizer, scheduler=_schedule(optimizer))

    def with_masters(self, device: torch.device) -> Training:
        """Return a training of the same weights with an AdamW over float32 masters on `device`."""
        optimizer = adamw_with_masters(self.model.parameters(), device, **ADAMW)
        return replace(self, optimizer=optimizer, scheduler=_schedule(optimizer))

    def step(self, phase: EnterPhase) -> None:
        """Train on a batch, each part in its phase."""
        self.begin(phase)
        self.finish(phase)

    def begin(self, phase: EnterPhase) -> None:
        """Fetch a batch and compute its loss, each in its phase."""
        with phase("dataload_wait"):
            batch = self.next_batch()
        with phase("forward"):
            self.forward(batch)

    def next_batch(self) -> Sample:
        """Return the next batch, its copy to the device started; the last batch is freed here, inside a phase."""
        self.batch = next(self.batches).to(self.device)
        return self.batch

    def count_outlier(self, seen: bool) -> None:
        """Count a batch with outliers; it is never dropped, since other ranks would wait for it."""
        self.num_outliers += seen

    def forward(self, batch: Sample) -> None:
        """Compute the loss; the graph of the last loss is freed here, inside a phase."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            self.loss = self.model(batch)

    def finish(self, phase: EnterPhase) -> None:
        """Run everything after the forward pass, each part in its phase."""
        self.update(phase)
        with phase("sync_gather"):
            self.gather()

    def update(self, phase: EnterPhase) -> None:
        """Update the weights from the loss, each part in its phase."""
        with phase("bwd"):
            self.backward()
        self.apply(phase)

    def backward(self, share: float = 1.0) -> None:
        """Accumulate the gradients of `share` of the loss."""
        assert self.loss is not None
        self.scaler.scale(self.loss * share if share < 1 else self.loss).backward()  # type: ignore[no-untyped-call]

    def without_reduction(self) -> AbstractContextManager[object]:
        """Return a context in which gradients are not reduced: a backward after it reduces them as well."""
        no_sync = getattr(self.model, "no_sync", None)
        context: AbstractContextManager[object] = no_sync() if no_sync is not None else nullcontext()
        return context

    def apply(self, phase: EnterPhase) -> None:
        """Update the weights from the gradients, each part in its phase."""
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
        """Loss of the last forward pass, on the device, detached."""
        assert self.loss is not None
        return self.loss.detach()

    def measured(self, *, on_host: bool = True) -> dict[str, Tensor]:
        """Return the step's metrics on the device; `on_host` includes those that the host knows already."""
        assert self.norm is not None
        loss = self.last_loss
        metrics = {
            "loss": loss,
            "grad_norm": self.norm,
            "rmse": loss.sqrt(),
            "clipped": (self.norm > MAX_GRAD_NORM).float(),
        }
        if on_host:
            metrics["lr"] = torch.as_tensor(self.scheduler.get_last_lr()[0], device=self.device)
        return metrics

    def gather(self) -> None:
        """Gather five metrics over all ranks, with one `.item()` each, as trainers do."""
        self.metrics |= gather_means(self.accelerator, self.measured())


def _schedule(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=LR_WARMUP_STEPS)


def _accelerator(context: Context) -> Accelerator:
    """Return an accelerator that spans all ranks; on CPUs that needs `cpu=True`, else each rank is silently alone."""
    accelerator = Accelerator(cpu=context.device.type == "cpu")
    if accelerator.num_processes != context.world_size:
        raise RecordingFailed(f"accelerate sees {accelerator.num_processes} ranks; expected {context.world_size}")
    context.facts["accelerate_world_size"] = accelerator.num_processes
    return accelerator
