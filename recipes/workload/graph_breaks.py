"""What torch.compile made of a model: graphs, where they break, what was compiled again, and how long it took."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch

from traceq.recorder import Skip

__all__ = ["breaks_in", "check_backend", "num_compiled", "recompiles", "seconds_to_compile"]


def check_backend(backend: str, device: torch.device) -> None:
    """Skip where nothing can turn a graph into a kernel: inductor needs Triton on CUDA, a C++ compiler on a CPU."""
    if backend != "inductor":
        return
    if device.type == "cuda" and find_spec("triton") is None:
        raise Skip("inductor needs Triton: pip install triton, or --set backend=aot_eager")
    if device.type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        raise Skip("inductor needs a C++ compiler on a CPU: install g++, or --set backend=aot_eager")


def breaks_in(forward: Callable[..., object], *inputs: object) -> list[str]:
    """`vla.py:124 forward`, where the graph of a forward pass breaks, once for each time that it does."""
    places = [reason.user_stack[-1] for reason in torch._dynamo.explain(forward)(*inputs).break_reasons]
    torch._dynamo.reset()
    return [f"{Path(place.filename).name}:{place.lineno} {place.name}" for place in places]


def seconds_to_compile(passes: Callable[[], None]) -> float:
    """How much longer the first forward and backward pass takes than the second."""

    def seconds() -> float:
        start = perf_counter()
        passes()
        return perf_counter() - start

    return max(seconds() - seconds(), 0.0)


def num_compiled() -> int:
    """Compilations of this process so far."""
    return len(torch._dynamo.utils.get_compilation_metrics())


def recompiles() -> list[str]:
    """`_transformed: tensor 'x' size mismatch at index 1 ...` for each function that was compiled once more."""
    told = []
    for each in torch._dynamo.utils.get_compilation_metrics():
        if reason := getattr(each, "recompile_reason", None):
            short = (reason.partition(": ")[2] or reason).splitlines()[0].partition("  #")[0].rstrip()
            told.append(f"{each.co_name}: {short}")
    return told
