"""Parameters of every recipe that trains, or loads data for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

__all__ = ["ShardedParameters", "TrainingParameters"]


@dataclass(frozen=True, slots=True)
class TrainingParameters:
    """Model, batch size of a rank, loader and seed; recipes add parameters for their question."""

    size: Literal["tiny", "small", "base", "3b"] = "tiny"
    batch_size: Annotated[int, Meta(ge=1)] = 8
    num_workers: Annotated[int, Meta(ge=0)] = 1
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class ShardedParameters(TrainingParameters):
    """Parameters of a model that ranks may share; `checkpointing` recomputes blocks in backward."""

    strategy: Literal["ddp", "full_shard", "shard_grad_op", "fsdp2", "zero2", "zero3"] = "ddp"
    checkpointing: bool = False
