"""Whether what the job compiles runs compiled or eagerly: on or off."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import Job

CANDIDATES = ("off",)


class CompileToggle:
    """The stance of torch.compiler: compiled code stays in its cache while it is off."""

    changes_ops = True

    def __init__(self, values: Sequence[str]) -> None:
        self._values = values

    def apply(self, number: int) -> None:
        """Run compiled or eagerly from the next call on."""
        torch.compiler.set_stance("force_eager" if self._values[number] == "off" else "default")

    def fault(self, number: int) -> str:
        """Return ""; that it has an effect shows in the ops."""
        return ""

    def restore(self) -> None:
        """Run compiled."""
        torch.compiler.set_stance("default")


def create(job: Job, values: Sequence[str]) -> CompileToggle:
    """Return the toggle; UsageFault for a job that has compiled nothing yet."""
    if not hasattr(torch.compiler, "set_stance"):
        raise UsageFault(f"torch {torch.__version__} cannot switch; 2.6 can")
    if not has_compiled():
        raise UsageFault("the job compiles nothing: add torch.compile to it, and compare on with off")
    return CompileToggle(values)


def compiled_ns() -> int:
    """Return how long torch has compiled in this process, ns; 0 where it does not say."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    spent: dict[str, float] = getattr(dynamo, "calculate_time_spent", dict)()
    return int(1e9 * spent.get("entire_frame_compile", 0.0))


def has_compiled() -> bool:
    """Return True once torch.compile has compiled something in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"]["unique_graphs"])
