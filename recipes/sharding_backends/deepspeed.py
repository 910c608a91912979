"""DeepSpeed's ZeRO 2 and 3 around a model, also on CPUs, without compiling extensions."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
from torch import nn

__all__ = ["zero_engine"]

_SHM = "deepspeed_shm_comm"


def zero_engine(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    stage: int,
    unit: type[nn.Module],
    device: torch.device,
    batch_size: int,
    max_norm: float,
    in_bfloat16: bool,
) -> Any:
    """Return DeepSpeed's engine over all ranks; at stage 3 it frees each unit after its pass, as FSDP does."""
    deepspeed = _imported(device)
    sharding: dict[str, int] = {"stage": stage}
    if stage == 3:
        deepspeed.utils.set_z3_leaf_modules(model, [unit])
        sharding |= {
            "stage3_param_persistence_threshold": 0,  # else parameters of up to 100,000 elements stay whole
            "stage3_prefetch_bucket_size": 0,  # else the next 50,000,000 elements are gathered ahead
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,  # else units that backward soon needs again are kept
        }
    config = {
        "train_micro_batch_size_per_gpu": batch_size,
        "zero_optimization": sharding,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": max_norm,
        "bf16": {"enabled": in_bfloat16},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def _imported(device: torch.device) -> Any:
    """Return DeepSpeed set to the device's type; on a CPU without its shared-memory op, which needs compiling."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    deepspeed, ops = import_module("deepspeed"), import_module("deepspeed.ops")
    if device.type == "cpu" and hasattr(ops, "__compatible_ops__"):
        ops.__compatible_ops__[_SHM] = False
    return deepspeed
