"""Build a model with its optimizer on several ranks, by a sharding strategy of torch or DeepSpeed, and verify it.

Libraries may silently give DDP for FSDP, or one rank for two. Collectives that a step issues are counted where torch
dispatches them: the same on every backend. DeepSpeed's ZeRO also runs on CPUs, without compiling extensions.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from traceq.errors import RecordingFailed
from traceq.recipes.memory.model_state import local_part
from traceq.recipes.workload.parameters import Precision
from traceq.recorder import Context

__all__ = [
    "ShardedModel",
    "ShardingSpec",
    "check_issued",
    "check_wrapping",
    "issued_collectives",
    "missing_backend",
    "shard_model",
    "too_few_ranks",
]

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
    """Return DeepSpeed's engine over all ranks; at stage 3 it frees each unit after its pass, as FSDP does."""
    optimizer, deepspeed = spec.optimizer(model.parameters()), _deepspeed(context.device)
    sharding = {"stage": _STAGES[spec.strategy]}
    if spec.strategy == "zero3":
        deepspeed.utils.set_z3_leaf_modules(model, [spec.unit])
        sharding |= {
            "stage3_param_persistence_threshold": 0,  # else parameters of up to 100,000 elements stay whole
            "stage3_prefetch_bucket_size": 0,  # else the next 50,000,000 elements are gathered ahead
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,  # else units that backward soon needs again are kept
        }
    config = {
        "train_micro_batch_size_per_gpu": spec.batch_size,
        "zero_optimization": sharding,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": spec.max_norm,
        "bf16": {"enabled": spec.in_bfloat16},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return ShardedModel(engine, optimizer, engine.backward, lambda: None, engine.step, lambda: None)


def _deepspeed(device: torch.device) -> Any:
    """Return DeepSpeed set to the device's type; on a CPU without its shared-memory op, which needs compiling."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    deepspeed, ops = import_module("deepspeed"), import_module("deepspeed.ops")
    if device.type == "cpu" and hasattr(ops, "__compatible_ops__"):
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


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


def missing_backend(strategy: str, precision: Precision) -> str:
    """Return why a strategy cannot run here, "" if it can."""
    if strategy == "fsdp2" and not hasattr(fsdp, "fully_shard"):
        return "needs torch 2.6 or newer"
    if strategy.startswith("zero") and precision == "bfloat16":
        return "DeepSpeed keeps float32 masters of bfloat16 weights: with precision=bfloat16 it is not alike"
    if strategy.startswith("zero") and find_spec("deepspeed") is None:
        return "needs DeepSpeed, which is not installed: pip install 'traceq-torch[deepspeed]'"
    return ""


_REPLICATED = ("ddp", "zero2")
_MOST_PADDING = 1024
"""Elements by which all shards of one parameter together may be padded."""


def check_wrapping(context: Context, model: nn.Module, strategy: str, sizes: Sequence[int]) -> None:
    """Raise RecordingFailed unless the wrapper has the strategy's class, spans all ranks and holds all elements.

    All ranks together must hold one copy of the parameters of these `sizes`, or one per rank if they are replicated.
    """
    num_ranks = context.world_size
    num_units = sum(span == num_ranks for span in _spans(model, strategy))
    held = torch.tensor(sum(local_part(parameter).numel() for parameter in model.parameters()), device=context.device)
    dist.all_reduce(held)
    expected = sum(sizes) * (num_ranks if strategy in _REPLICATED else 1)
    if not num_units or not expected <= int(held) <= expected + _MOST_PADDING * len(sizes):
        raise RecordingFailed(
            f"{strategy}: found {type(model).__name__} with {num_units} units over {num_ranks} ranks and "
            f"{int(held):,} elements; expected {expected:,}"
        )
    context.facts["wrapper"] = type(model).__name__
    context.facts["wrapper_world_size"] = num_ranks
    context.facts["wrapper_units"] = num_units


def _spans(model: Any, strategy: str) -> list[int]:
    """Return the number of ranks that each unit spans, for units wrapped by the strategy."""
    if strategy == "ddp":
        return [model.process_group.size()] if isinstance(model, DistributedDataParallel) else []
    if strategy == "fsdp2":
        from torch.distributed.fsdp import FSDPModule  # since torch 2.6
        from torch.distributed.tensor import DTensor

        units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        meshes = {each.device_mesh.size() for each in model.parameters() if isinstance(each, DTensor)}
        return len(units) * list(meshes) if len(meshes) == 1 else []
    if strategy.startswith("zero"):
        stage = getattr(model, "zero_optimization_stage", lambda: 0)()
        return [model.data_parallel_group.size()] if strategy == f"zero{stage}" else []
    expected = ShardingStrategy[strategy.upper()]
    shards = FullyShardedDataParallel.fsdp_modules(model)
    return [dist.get_world_size(unit.process_group) for unit in shards if unit.sharding_strategy is expected]


_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
_SHARDED = {"all_gather", "reduce_scatter"}
_EXPECTED = {
    "ddp": ({"all_reduce"}, _SHARDED),
    "full_shard": (_SHARDED, set()),
    "shard_grad_op": (_SHARDED, set()),
    "fsdp2": (_SHARDED, set()),
    "zero2": ({"all_gather"}, set()),
    "zero3": (_SHARDED, set()),
}
"""Kinds of collectives that each strategy must issue, and those it must not."""


def issued_collectives(step: Callable[[], object]) -> Counter[str]:
    """Return the number of collectives that one call of `step` issues, by name."""
    counter = _CollectiveCounter()
    with counter:
        step()
    return counter.num


def check_issued(strategy: str, issued: Counter[str]) -> None:
    """Raise RecordingFailed if a collective that the strategy needs is missing, or one was issued that it must not."""
    needed, forbidden = _EXPECTED[strategy]
    if not needed <= set(issued) or set(issued) & forbidden:
        raise RecordingFailed(f"{strategy}: a step issues {dict(issued)}; expected {sorted(needed)}")


class _CollectiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of c10d ops while it is active, including those of the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            letters = re.sub("[^a-z]", "", func.__name__)
            self.num.update(kind for kind in _KINDS if kind.replace("_", "") in letters)
        return func(*args, **(kwargs or {}))
