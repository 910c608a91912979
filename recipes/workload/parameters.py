"""Parameters of every recipe that trains, or loads data for training, and the phases of its step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

__all__ = ["PHASES", "EnterPhase", "ModelParameters", "Precision", "Prompts", "ShardedParameters", "TrainingParameters"]

Prompts: TypeAlias = Literal["fixed", "ragged"]
"""Lengths of prompts: all the same, or from one token to that."""

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
class ModelParameters(TrainingParameters):
    """Further parameters of the model and its inputs.

    `checkpointing` recomputes blocks in backward. `precision` is verified on the optimizer's tensors. `cameras` is the
    number of images per sample. Ragged prompts are padded to the longest of a batch, and attention is masked.
    """

    attention: Literal["sdpa", "eager"] = "sdpa"
    checkpointing: bool = False
    precision: Precision = "float32_masters"
    cameras: Annotated[int, Meta(ge=1, le=4)] = 1
    prompts: Prompts = "fixed"


@dataclass(frozen=True, slots=True)
class ShardedParameters(ModelParameters):
    """Parameters of a model that ranks may share."""

    strategy: Literal["ddp", "full_shard", "shard_grad_op", "fsdp2", "zero2", "zero3"] = "ddp"


PHASES = ("dataload_wait", "forward", "bwd", "unscale_clip", "optim_step", "zero_grad_sched", "sync_gather")
EnterPhase: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Enters a phase by name, as `Context.phase` does."""
