"""Whether a sharding strategy can run with the installed packages."""

from __future__ import annotations

from importlib.util import find_spec

from torch.distributed import fsdp

from traceq.recipes.workload.parameters import Precision

__all__ = ["missing_backend"]


def missing_backend(strategy: str, precision: Precision) -> str:
    """Return why a strategy cannot run here, "" if it can."""
    if strategy == "fsdp2" and not hasattr(fsdp, "fully_shard"):
        return "needs torch 2.6 or newer"
    if strategy.startswith("zero") and precision == "bfloat16":
        return "DeepSpeed keeps float32 masters of bfloat16 weights: with precision=bfloat16 it is not alike"
    if strategy.startswith("zero") and find_spec("deepspeed") is None:
        return "needs DeepSpeed, which is not installed: pip install 'traceq-torch[deepspeed]'"
    return ""
