"""The part of a vision-language-action training step that every experiment on it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from traceq.errors import RecordingFailed
from traceq.recorder import Context

from .episodes import Sample
from .vla import SIZES, VisionLanguageAction

__all__ = ["Training"]

MAX_GRAD_NORM = 1.0
WARMUP_STEPS = 100


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
    num_outliers: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def build(cls, context: Context, size: str, batch_size: int, num_workers: int, seed: int) -> Training:
        """Everything on the context's device, the model wrapped and verified."""
        chosen = SIZES[size]
        torch.manual_seed(seed)
        model = context.wrap(VisionLanguageAction(chosen))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
        return cls(
            model=model,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARMUP_STEPS),
            batches=context.batches(chosen.episodes(seed, context.rank), batch_size, num_workers),
            accelerator=_accelerator(context),
            device=context.device,
            autocast=chosen.autocast and context.device.type == "cuda",
        )

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

    def finish(self, phase: Callable[[str], AbstractContextManager[None]]) -> None:
        """Everything after the forward pass, each part in its phase."""
        assert self.loss is not None
        with phase("bwd"):
            self.loss.backward()  # type: ignore[no-untyped-call]
        with phase("unscale_clip"):
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        with phase("optim_step"):
            self.optimizer.step()
        with phase("zero_grad_sched"):
            self.optimizer.zero_grad(set_to_none=True)
            self.scheduler.step()
        with phase("sync_gather"):
            self._gather(self.loss.detach(), norm)

    def _gather(self, loss: Tensor, norm: Tensor) -> None:
        """Five metrics over all ranks, one `.item()` each, as trainers do it."""
        found = {
            "loss": loss,
            "grad_norm": norm,
            "rmse": loss.sqrt(),
            "clipped": (norm > MAX_GRAD_NORM).float(),
            "lr": torch.as_tensor(self.scheduler.get_last_lr()[0], device=self.device),
        }
        for name, value in found.items():
            self.metrics[name] = self.accelerator.gather_for_metrics(value).mean().item()


def _accelerator(context: Context) -> Accelerator:
    """An accelerator that spans all ranks: on CPUs `cpu=True`, without which each rank is alone and does not say so."""
    accelerator = Accelerator(cpu=context.device.type == "cpu")
    if accelerator.num_processes != context.world_size:
        raise RecordingFailed(f"accelerate sees {accelerator.num_processes} ranks; expected {context.world_size}")
    context.facts["accelerate_world_size"] = accelerator.num_processes
    return accelerator
