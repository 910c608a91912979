"""Results of torch.compile on a model: graph breaks, recompile_reasons and compilation time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch

from traceq.recorder import Skip

__all__ = ["check_backend", "compile_seconds", "find_graph_breaks", "num_compilations", "recompile_reasons"]


def check_backend(backend: str, device: torch.device) -> None:
    """Raise Skip if inductor cannot generate kernels: it needs Triton on CUDA, a C++ compiler on a CPU."""
    if backend != "inductor":
        return
    if device.type == "cuda" and find_spec("triton") is None:
        raise Skip("inductor needs Triton: pip install triton, or --set backend=aot_eager")
    if device.type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        raise Skip("inductor needs a C++ compiler on a CPU: install g++, or --set backend=aot_eager")


def find_graph_breaks(forward: Callable[..., object], *inputs: object) -> list[str]:
    """Return the line of each graph break of a forward pass, such as `vla.py:124 forward`; repeats are kept."""
    frames = [reason.user_stack[-1] for reason in torch._dynamo.explain(forward)(*inputs).break_reasons]
    torch._dynamo.reset()
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def compile_seconds(passes: Callable[[], None]) -> float:
    """Return how many seconds longer the first forward and backward pass takes than the second."""

    def seconds() -> float:
        start = perf_counter()
        passes()
        return perf_counter() - start

    return max(seconds() - seconds(), 0.0)


def num_compilations() -> int:
    """Return the number of compilations in the current process."""
    return len(torch._dynamo.utils.get_compilation_metrics())


def recompile_reasons() -> list[str]:
    """Return a reason per recompiled function: `_transformed: tensor 'x' size mismatch at index 1 ...`."""
    reasons = []
    for each in torch._dynamo.utils.get_compilation_metrics():
        if reason := getattr(each, "recompile_reason", None):
            short = (reason.partition(": ")[2] or reason).splitlines()[0].partition("  #")[0].rstrip()
            reasons.append(f"{each.co_name}: {short}")
    return reasons
