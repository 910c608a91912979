"""Build a model with its optimizer on several ranks, by a sharding strategy of torch or DeepSpeed, and verify it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from traceq.errors import RecordingFailed
from traceq.recipes.sharding_backends.check_wrapper import check_wrapping
from traceq.recipes.sharding_backends.deepspeed import zero_engine
from traceq.recorder import Context

__all__ = ["ShardedModel", "ShardingSpec", "shard_model", "too_few_ranks"]

MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_FSDP1 = {"full_shard": ShardingStrategy.FULL_SHARD, "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP}
_STAGES = {"zero2": 2, "zero3": 3}


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """How to shard a model: by `ddp`, `full_shard`, `shard_grad_op`, `fsdp2`, `zero2` or `zero3`.

    Strategies that gather parameters gather each module of type `unit` separately. `in_bfloat16`: float32 masters are
    gathered and computed in bfloat16; FSDP reduces gradients in float32.
    """

    strategy: str
    unit: type[nn.Module]
    optimizer: MakeOptimizer
    max_norm: float
    batch_size: int
    in_bfloat16: bool = False


@dataclass(frozen=True, slots=True)
class ShardedModel:
    """A wrapped model, and the parts of a step that differ between strategies.

    `optimizer` is torch's, for a schedule. DeepSpeed's `step` also clips and frees the gradients.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    backward: Callable[[Tensor], Any]
    clip: Callable[[], Any]
    step: Callable[[], Any]
    zero_grad: Callable[[], Any]


def too_few_ranks(context: Context, strategy: str) -> str:
    """Return why a strategy cannot run on so few ranks, "" if it can; `ddp` leaves the model of one rank unwrapped."""
    if context.world_size > 1 or strategy == "ddp":
        return ""
    return f"{strategy} needs at least two ranks; found one: --ranks 2"


def shard_model(context: Context, model: nn.Module, spec: ShardingSpec) -> ShardedModel:
    """Return the model sharded over the context's ranks; RecordingFailed if the wrapper does not match the strategy."""
    if reason := too_few_ranks(context, spec.strategy):
        raise RecordingFailed(reason)
    sizes = [parameter.numel() for parameter in model.parameters()]
    model = model.to(context.device)
    sharded = _by_deepspeed(context, model, spec) if spec.strategy in _STAGES else _by_torch(context, model, spec)
    context.facts["num_parameters"] = sum(sizes)
    if context.world_size > 1:
        check_wrapping(context, sharded.model, spec.strategy, sizes)
    return sharded


def _by_torch(context: Context, model: nn.Module, spec: ShardingSpec) -> ShardedModel:
    wrapped = _wrapped(context, model, spec)
    optimizer = spec.optimizer(wrapped.parameters())

    def clip() -> None:
        if isinstance(wrapped, FullyShardedDataParallel):  # torch's function would compute the norm of one shard
            wrapped.clip_grad_norm_(spec.max_norm)
        else:
            nn.utils.clip_grad_norm_(wrapped.parameters(), spec.max_norm)

    # a schedule wraps `step` of the optimizer later, so it is looked up at each call
    return ShardedModel(wrapped, optimizer, Tensor.backward, clip, lambda: optimizer.step(), optimizer.zero_grad)


def _by_deepspeed(context: Context, model: nn.Module, spec: ShardingSpec) -> ShardedModel:
    optimizer = spec.optimizer(model.parameters())
    engine = zero_engine(
        model,
        optimizer,
        stage=_STAGES[spec.strategy],
        unit=spec.unit,
        device=context.device,
        batch_size=spec.batch_size,
        max_norm=spec.max_norm,
        in_bfloat16=spec.in_bfloat16,
    )
    return ShardedModel(engine, optimizer, engine.backward, lambda: None, engine.step, lambda: None)


def _wrapped(context: Context, model: nn.Module, spec: ShardingSpec) -> nn.Module:
    if spec.strategy == "ddp":
        return context.wrap(model)
    if spec.strategy == "fsdp2":
        return _fully_sharded(context, model, spec)
    return FullyShardedDataParallel(
        model,
        sharding_strategy=_FSDP1[spec.strategy],
        auto_wrap_policy=ModuleWrapPolicy({spec.unit}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32) if spec.in_bfloat16 else None,
        device_id=context.device,
        use_orig_params=True,
    )


def _fully_sharded(context: Context, model: nn.Module, spec: ShardingSpec) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # since torch 2.6

    world = dist.group.WORLD
    assert world is not None
    mesh = DeviceMesh.from_group(world, context.device.type)  # some versions would create an nccl group beside gloo
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if spec.in_bfloat16 else MixedPrecisionPolicy()
    for module in [module for module in model.modules() if isinstance(module, spec.unit)]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # changes its class in place
    return model
