"""Settings of a process that steps read: autocast, compiled code, cuDNN, the collector, precision and threads."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import DEFAULT, Job


class Setting:
    """A function that sets the value and one that reads it; `values` may hold DEFAULT, the job's own."""

    def __init__(
        self,
        setter: Callable[[Any], object],
        read: Callable[[], Any],
        values: Sequence[Any],
        *,
        changes_ops: bool = False,
    ) -> None:
        self._set, self._read, self.changes_ops = setter, read, changes_ops
        self._before = read()
        self._values = [self._before if value == DEFAULT else value for value in values]

    def apply(self, number: int) -> None:
        """Set the n-th value."""
        self._set(self._values[number])

    def fault(self, number: int) -> str:
        """Return what is read instead of the n-th value."""
        value = self._read()
        return "" if value == self._values[number] else f"it reads {value!r}"

    def restore(self) -> None:
        """Set the job's own value."""
        self._set(self._before)


def are_on(values: Sequence[str]) -> list[bool | str]:
    """Return True for on, False for off, and DEFAULT as it is."""
    return [value if value == DEFAULT else value == "on" for value in values]


class CudnnBenchmark:
    """cuDNN's search for the fastest algorithm of each convolution; losses may differ by rounding."""

    CANDIDATES = ("on",)

    @staticmethod
    def is_used(job: Job) -> bool:
        """Return whether the models have a convolution on a CUDA device."""
        modules = (module for model in job.models for module in model.modules())
        return any(isinstance(module, _ConvNd) and module.weight.is_cuda for module in modules)

    @staticmethod
    def create(job: Job, values: Sequence[str]) -> Setting:
        """Return the toggle."""
        set_search = functools.partial(setattr, torch.backends.cudnn, "benchmark")
        return Setting(set_search, lambda: torch.backends.cudnn.benchmark, are_on(values))


class GarbageCollector:
    """Python's garbage collector; `on` is with the thresholds and the frozen objects of the job."""

    CANDIDATES = ("on", "off")

    @staticmethod
    def create(job: Job, values: Sequence[str]) -> Setting:
        """Return the toggle."""
        return Setting(lambda is_on: (gc.enable if is_on else gc.disable)(), gc.isenabled, are_on(values))


class MatmulPrecision:
    """Precision of float32 matrix products: highest, high (TF32) or medium (bfloat16)."""

    CANDIDATES = ("high",)

    @staticmethod
    def is_used(job: Job) -> bool:
        """Return whether a parameter is on a device that has other precisions than float32's."""
        return any(parameter.is_cuda for model in job.models for parameter in model.parameters())

    @staticmethod
    def create(job: Job, values: Sequence[str]) -> Setting:
        """Return the toggle."""
        return Setting(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, values)


class Threads:
    """Number of threads of an op on the CPU."""

    CANDIDATES = tuple(str(number) for number in (1, 2, 4, 8) if number <= (os.cpu_count() or 1))

    @staticmethod
    def create(job: Job, values: Sequence[str]) -> Setting:
        """Return the toggle; UsageFault for anything but positive integers."""
        for value in values:
            if value != DEFAULT and not (value.isdigit() and int(value)):
                raise UsageFault(f"{value}: expected a number of threads")
        numbers = [value if value == DEFAULT else int(value) for value in values]
        return Setting(torch.set_num_threads, torch.get_num_threads, numbers)


class Autocast:
    """Whether the job's autocast regions take effect: torch.autocast is entered disabled while off."""

    CANDIDATES = ("off",)
    changes_ops = True

    def __init__(self, values: Sequence[str]) -> None:
        self._values = values
        self._is_on = True
        self._before = torch.autocast.__enter__
        torch.autocast.__enter__ = self._entered(self._before)  # type: ignore[method-assign]

    @staticmethod
    def is_used(job: Job) -> bool:
        """Return whether the job has regions that could be off."""
        return job.uses_autocast

    @classmethod
    def create(cls, job: Job, values: Sequence[str]) -> Autocast:
        """Return the toggle; a job without autocast shows in that its arms issue the same ops."""
        return cls(values)

    def apply(self, number: int) -> None:
        """Let the next regions take effect, or not."""
        self._is_on = self._values[number] != "off"

    def fault(self, number: int) -> str:
        """Return ""; that it has an effect shows in the ops."""
        return ""

    def restore(self) -> None:
        """Restore the entry."""
        torch.autocast.__enter__ = self._before  # type: ignore[method-assign]

    def _entered(self, enter: Any) -> Any:
        @functools.wraps(enter)
        def call(region: Any) -> Any:
            if self._is_on or torch.compiler.is_compiling():
                return enter(region)
            is_enabled, region._enabled = region._enabled, False
            try:
                return enter(region)
            finally:
                region._enabled = is_enabled

        return call


class Compile:
    """Whether what the job compiles runs compiled: the stance of torch.compiler, whose cache stays while it is off."""

    CANDIDATES = ("off",)
    changes_ops = True

    def __init__(self, values: Sequence[str]) -> None:
        self._values = values

    @classmethod
    def create(cls, job: Job, values: Sequence[str]) -> Compile:
        """Return the toggle; UsageFault for a job that has compiled nothing yet."""
        if not hasattr(torch.compiler, "set_stance"):
            raise UsageFault(f"torch {torch.__version__} cannot switch; 2.6 can")
        if not has_compiled():
            raise UsageFault("the job compiles nothing: add torch.compile to it, and compare on with off")
        return cls(values)

    def apply(self, number: int) -> None:
        """Run compiled or eagerly from the next call on."""
        torch.compiler.set_stance("force_eager" if self._values[number] == "off" else "default")

    def fault(self, number: int) -> str:
        """Return ""; that it has an effect shows in the ops."""
        return ""

    def restore(self) -> None:
        """Run compiled."""
        torch.compiler.set_stance("default")


def compiled_ns() -> int:
    """Return how long torch has compiled in this process, ns; 0 where it does not say."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    spent: dict[str, float] = getattr(dynamo, "calculate_time_spent", dict)()
    return int(1e9 * spent.get("entire_frame_compile", 0.0))


def has_compiled() -> bool:
    """Return True once torch.compile has compiled something in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"]["unique_graphs"])
