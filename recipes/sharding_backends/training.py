"""A training step of the vision-language-action model under any strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LinearLR, LRScheduler

from traceq.recipes.sharding_backends.build import ShardedModel, ShardingSpec, spread
from traceq.recipes.workload.data import Sample
from traceq.recipes.workload.model import SIZES, Block, VisionLanguageAction
from traceq.recipes.workload.parameters import ShardedParameters
from traceq.recipes.workload.training import ADAMW, LR_WARMUP_STEPS, MAX_GRAD_NORM
from traceq.recorder import Context

__all__ = ["Phase", "Sharded"]

Phase: TypeAlias = Callable[[str], AbstractContextManager[None]]


@dataclass(slots=True)
class Sharded:
    """A model spread over ranks, with its schedule and data. Random weights are the same under every strategy."""

    spread: ShardedModel
    scheduler: LRScheduler
    batches: Iterator[Sample]
    device: torch.device
    autocast: bool
    loss: Tensor | None = None

    @classmethod
    def build(cls, context: Context, parameters: ShardedParameters) -> Sharded:
        """Everything on the context's device."""
        chosen, strategy, batch_size = SIZES[parameters.size], parameters.strategy, parameters.batch_size
        torch.manual_seed(parameters.seed)
        model = VisionLanguageAction(chosen)
        for block in model.modules():
            if isinstance(block, Block):
                block.recomputes = parameters.checkpointing
        in_bfloat16 = chosen.weights is torch.bfloat16 or (chosen.autocast and context.device.type == "cuda")
        wish = ShardingSpec(
            strategy, Block, partial(torch.optim.AdamW, **ADAMW), MAX_GRAD_NORM, batch_size, in_bfloat16
        )
        found = spread(context, model, wish)
        return cls(
            spread=found,
            scheduler=LinearLR(found.optimizer, 0.1, total_iters=LR_WARMUP_STEPS),
            batches=context.batches(chosen.episodes(parameters.seed, context.rank), batch_size, parameters.num_workers),
            device=context.device,
            autocast=in_bfloat16 and strategy == "ddp",  # the others have bfloat16 weights while they compute
        )

    def step(self, phase: Phase) -> None:
        """Fetch a batch and train on it, each part in its phase."""
        with phase("dataload_wait"):
            batch = next(self.batches).to(self.device)
        self.train(batch, phase)

    def train(self, batch: Sample, phase: Phase) -> None:
        """From a batch on the device to new weights; the last step's graph is freed inside a phase."""
        with phase("forward"), torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            self.loss = self.spread.model(batch)
        with phase("bwd"):
            self.spread.backward(self.loss)
        with phase("unscale_clip"):
            self.spread.clip()
        with phase("optim_step"):
            self.spread.step()
        with phase("zero_grad_sched"):
            self.spread.zero_grad()
            self.scheduler.step()
