"""What can be set of every recipe that trains, or loads for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

__all__ = ["ShardedParameters", "TrainingParameters"]


@dataclass(frozen=True, slots=True)
class TrainingParameters:
    """Model, batch of a rank, loader and random numbers; a recipe adds what its question is about."""

    size: Literal["tiny", "small", "base", "3b"] = "tiny"
    batch_size: Annotated[int, Meta(ge=1)] = 8
    num_workers: Annotated[int, Meta(ge=0)] = 1
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class ShardedParameters(TrainingParameters):
    """Of a model that ranks may share, too; with `checkpointing` blocks compute again in backward."""

    strategy: Literal["ddp", "full_shard", "shard_grad_op", "fsdp2", "zero2", "zero3"] = "ddp"
    checkpointing: bool = False
