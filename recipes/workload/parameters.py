"""Parameters of every recipe that trains, or loads data for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

__all__ = ["Precision", "ShardedParameters", "TrainingParameters"]

Precision: TypeAlias = Literal["float32_masters", "bfloat16"]
"""Dtype of what the optimizer updates and of its moments. With float32 masters, sizes that compute in bfloat16 do so
from a copy: autocast, or parameters that are gathered in bfloat16."""


@dataclass(frozen=True, slots=True)
class TrainingParameters:
    """Model, batch size of a rank, loader and seed; recipes add parameters for their question."""

    size: Literal["tiny", "small", "base", "3b"] = "tiny"
    batch_size: Annotated[int, Meta(ge=1)] = 8
    num_workers: Annotated[int, Meta(ge=0)] = 1
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class ShardedParameters(TrainingParameters):
    """Parameters of a model that ranks may share; `checkpointing` recomputes blocks in backward.

    All arms train in one regime of `precision`, which is verified on the optimizer's tensors.
    """

    strategy: Literal["ddp", "full_shard", "shard_grad_op", "fsdp2", "zero2", "zero3"] = "ddp"
    checkpointing: bool = False
    attention: Literal["sdpa", "eager"] = "sdpa"
    precision: Precision = "float32_masters"
