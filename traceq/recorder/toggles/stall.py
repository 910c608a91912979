"""Microseconds for which the first layer of the largest model waits: a known cost, to see what traceq finds."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from torch.nn import Module

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import Job

__all__ = ["StallToggle", "create"]


class StallToggle:
    """A busy wait before each call of one layer, of `values` us."""

    changes_ops = False

    def __init__(self, layer: Module, values: Sequence[float]) -> None:
        self._values = values
        self._wait_ns = 0
        self._handle = layer.register_forward_pre_hook(self._wait)

    def apply(self, number: int) -> None:
        """Wait that long from now on."""
        self._wait_ns = round(1_000 * self._values[number])

    def fault(self, number: int) -> str:
        """Return ""; the wait is this toggle's own."""
        return ""

    def restore(self) -> None:
        """Remove the wait."""
        self._handle.remove()

    def _wait(self, *_: Any) -> None:
        end_ns = perf_counter_ns() + self._wait_ns
        while perf_counter_ns() < end_ns:
            pass


def create(job: Job, values: Sequence[str]) -> StallToggle:
    """Return the toggle; UsageFault if there is no model, or for a value that is no number."""
    layers = (module for model in job.models for module in model.modules() if not any(module.children()))
    layer = next((layer for layer in layers if any(True for _ in layer.parameters())), None)
    if layer is None:
        raise UsageFault("no model was found")
    try:
        return StallToggle(layer, [float(value) for value in values])
    except ValueError as error:
        raise UsageFault(f"expected microseconds: {error}") from error
