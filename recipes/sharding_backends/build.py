"""One model over several ranks by a strategy, with its optimizer: built by torch's own API, then checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from traceq.errors import RecordingFailed
from traceq.recipes.sharding_backends.check_wrapper import check_wrapping
from traceq.recipes.sharding_backends.deepspeed import zero_engine
from traceq.recorder import Context

__all__ = ["ShardedModel", "ShardingSpec", "spread", "too_few_ranks"]

MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_FSDP1 = {"full_shard": ShardingStrategy.FULL_SHARD, "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP}
_STAGES = {"zero2": 2, "zero3": 3}


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """How a model is to be spread: `ddp`, `full_shard`, `shard_grad_op`, `fsdp2`, `zero2` or `zero3`.

    Each module of type `unit` is gathered by itself where parameters are. `in_bfloat16`: what is sharded is gathered
    and computed in bfloat16; gradients are reduced in float32 by FSDP.
    """

    strategy: str
    unit: type[nn.Module]
    optimizer: MakeOptimizer
    max_norm: float
    batch_size: int
    in_bfloat16: bool = False


@dataclass(frozen=True, slots=True)
class ShardedModel:
    """A model under its wrapper, and the parts of a step that each strategy does in its own way.

    `optimizer` is torch's, for a schedule. DeepSpeed's `step` also clips and frees the gradients.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    backward: Callable[[Tensor], Any]
    clip: Callable[[], Any]
    step: Callable[[], Any]
    zero_grad: Callable[[], Any]


def too_few_ranks(context: Context, strategy: str) -> str:
    """Why a strategy cannot be had on so few ranks, empty where it can: `ddp` leaves the model on one as it is."""
    if context.world_size > 1 or strategy == "ddp":
        return ""
    return f"{strategy} spreads a model over ranks, and here is one: --ranks 2"


def spread(context: Context, model: nn.Module, wish: ShardingSpec) -> ShardedModel:
    """The model as wished, over the context's ranks. RecordingFailed if the wrapper is not what was asked for."""
    if lacking := too_few_ranks(context, wish.strategy):
        raise RecordingFailed(lacking)
    sizes = [parameter.numel() for parameter in model.parameters()]
    model = model.to(context.device)
    found = _by_engine(context, model, wish) if wish.strategy in _STAGES else _by_wrapper(context, model, wish)
    context.facts["num_parameters"] = sum(sizes)
    if context.world_size > 1:
        check_wrapping(context, found.model, wish.strategy, sizes)
    return found


def _by_wrapper(context: Context, model: nn.Module, wish: ShardingSpec) -> ShardedModel:
    wrapped = _wrapped(context, model, wish)
    optimizer = wish.optimizer(wrapped.parameters())

    def clip() -> None:
        if isinstance(wrapped, FullyShardedDataParallel):  # torch's own function would take the norm of one shard
            wrapped.clip_grad_norm_(wish.max_norm)
        else:
            nn.utils.clip_grad_norm_(wrapped.parameters(), wish.max_norm)

    # a schedule wraps `step` of the optimizer later, so it is looked up at each call
    return ShardedModel(wrapped, optimizer, Tensor.backward, clip, lambda: optimizer.step(), optimizer.zero_grad)


def _by_engine(context: Context, model: nn.Module, wish: ShardingSpec) -> ShardedModel:
    optimizer = wish.optimizer(model.parameters())
    engine = zero_engine(
        model,
        optimizer,
        stage=_STAGES[wish.strategy],
        unit=wish.unit,
        device=context.device,
        batch_size=wish.batch_size,
        max_norm=wish.max_norm,
        in_bfloat16=wish.in_bfloat16,
    )
    return ShardedModel(engine, optimizer, engine.backward, lambda: None, engine.step, lambda: None)


def _wrapped(context: Context, model: nn.Module, wish: ShardingSpec) -> nn.Module:
    if wish.strategy == "ddp":
        return context.wrap(model)
    if wish.strategy == "fsdp2":
        return _fully_sharded(context, model, wish)
    return FullyShardedDataParallel(
        model,
        sharding_strategy=_FSDP1[wish.strategy],
        auto_wrap_policy=ModuleWrapPolicy({wish.unit}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32) if wish.in_bfloat16 else None,
        device_id=context.device,
        use_orig_params=True,
    )


def _fully_sharded(context: Context, model: nn.Module, wish: ShardingSpec) -> nn.Module:
    world = dist.group.WORLD
    assert world is not None
    mesh = DeviceMesh.from_group(world, context.device.type)  # some versions would make a group of nccl, beside gloo
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if wish.in_bfloat16 else MixedPrecisionPolicy()
    for module in [module for module in model.modules() if isinstance(module, wish.unit)]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # changes its class in place
    return model
