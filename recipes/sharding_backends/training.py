"""A training step of the vision-language-action model under any strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LinearLR, LRScheduler

from traceq.recipes.sharding_backends.build import ShardedModel, ShardingSpec, shard_model
from traceq.recipes.workload.data import Sample, collate
from traceq.recipes.workload.model import Block, VisionLanguageAction, set_options
from traceq.recipes.workload.parameters import EnterPhase, ShardedParameters
from traceq.recipes.workload.precision import sized
from traceq.recipes.workload.training import ADAMW, LR_WARMUP_STEPS, MAX_GRAD_NORM
from traceq.recorder import Context

__all__ = ["ShardedTraining"]


@dataclass(slots=True)
class ShardedTraining:
    """A model sharded over ranks, with its schedule and data. Initial weights are the same under every strategy."""

    sharded: ShardedModel
    scheduler: LRScheduler
    batches: Iterator[Sample]
    device: torch.device
    autocast: bool
    loss: Tensor | None = None

    @classmethod
    def build(cls, context: Context, parameters: ShardedParameters) -> ShardedTraining:
        """Return the training with everything on the context's device."""
        precision = parameters.precision
        size = sized(parameters.size, precision, parameters.cameras, parameters.prompts)
        strategy, batch_size = parameters.strategy, parameters.batch_size
        torch.manual_seed(parameters.seed)
        model = VisionLanguageAction(size)
        set_options(model, attention=parameters.attention, checkpointing=parameters.checkpointing)
        in_bfloat16 = precision != "bfloat16" and size.autocast and context.device.type == "cuda"
        spec = ShardingSpec(
            strategy, Block, partial(torch.optim.AdamW, **ADAMW), MAX_GRAD_NORM, batch_size, in_bfloat16
        )
        sharded = shard_model(context, model, spec)
        episodes, padding = size.episodes(parameters.seed, context.rank), collate if size.ragged else None
        return cls(
            sharded=sharded,
            scheduler=LinearLR(sharded.optimizer, 0.1, total_iters=LR_WARMUP_STEPS),
            batches=context.batches(episodes, batch_size, parameters.num_workers, collate=padding),
            device=context.device,
            autocast=in_bfloat16 and strategy == "ddp",  # the others have bfloat16 weights while they compute
        )

    def step(self, phase: EnterPhase) -> None:
        """Fetch a batch and train on it, each part in its phase."""
        with phase("dataload_wait"):
            batch = next(self.batches).to(self.device)
        self.train(batch, phase)

    def train(self, batch: Sample, phase: EnterPhase) -> None:
        """Train on a batch that is on the device; the last step's graph is freed inside a phase."""
        with phase("forward"), torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            self.loss = self.sharded.model(batch)
        with phase("bwd"):
            self.sharded.backward(self.loss)
        with phase("unscale_clip"):
            self.sharded.clip()
        with phase("optim_step"):
            self.sharded.step()
        with phase("zero_grad_sched"):
            self.sharded.zero_grad()
            self.scheduler.step()
