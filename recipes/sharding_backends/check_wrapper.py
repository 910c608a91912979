"""Check that a model is wrapped as requested: libraries may silently give DDP for FSDP, or one rank for two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

from traceq.errors import RecordingFailed
from traceq.recipes.memory.model_state import local_part
from traceq.recorder import Context

__all__ = ["check_wrapping"]

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
    context.facts["num_parameters"] = sum(sizes)
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
