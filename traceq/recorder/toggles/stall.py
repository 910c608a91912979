"""Microseconds for which the first layer of the largest model waits: a known cost, to see what traceq finds."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from torch.nn import Module

from traceq.errors import RecordingFailed, UsageFault
from traceq.recorder.rank.replaced_methods import has_forward
from traceq.recorder.toggles.toggle import Job

__all__ = ["StallToggle", "create"]

_MOST_CHANGES = 32
"""Changes of the value after which a layer should have been called, also where all arms are tried before any step."""


class StallToggle:
    """A busy wait of `values` us before each call of one layer: the first of `layers` that the steps call.

    Some models are called by other methods, or hold a copy of another one.
    """

    changes_ops = False

    def __init__(self, layers: Sequence[Module], values: Sequence[float]) -> None:
        self._values = values
        self._wait_ns = 0
        self._num_changes = 0
        self._called: set[int] = set()
        self._chosen: int | None = None
        self._handles = [
            layer.register_forward_pre_hook(lambda *_, number=number: self._begin(number))
            for number, layer in enumerate(layers)
        ]

    def apply(self, number: int) -> None:
        """Wait that long from now on. Raises RecordingFailed if the steps call none of the layers."""
        self._wait_ns = round(1_000 * self._values[number])
        if self._chosen is None:
            self._choose()

    def fault(self, number: int) -> str:
        """Return ""; the wait is this toggle's own."""
        return ""

    def restore(self) -> None:
        """Remove the wait."""
        for handle in self._handles:
            handle.remove()

    def _choose(self) -> None:
        """Let the first layer that was called wait, and forget the others."""
        self._num_changes += 1
        if self._called:
            self._chosen = min(self._called)
            for number, handle in enumerate(self._handles):
                if number != self._chosen:
                    handle.remove()
        elif self._num_changes > _MOST_CHANGES:
            raise RecordingFailed("@stall: the steps call the first layer of no model")

    def _begin(self, number: int) -> None:
        if self._chosen is None:
            self._called.add(number)
        elif number == self._chosen:
            end_ns = perf_counter_ns() + self._wait_ns
            while perf_counter_ns() < end_ns:
                pass


def create(job: Job, values: Sequence[str]) -> StallToggle:
    """Return the toggle; UsageFault if there is no model, or for a value that is no number."""
    layers = [layer for model in job.models if (layer := _first_layer(model)) is not None]
    if not layers:
        raise UsageFault("no model was found")
    try:
        return StallToggle(layers, [float(value) for value in values])
    except ValueError as error:
        raise UsageFault(f"expected microseconds: {error}") from error


def _first_layer(model: Module) -> Module | None:
    """Return the first module with parameters that calls no other one: of those that learn, if there are any."""
    layers = [module for module in model.modules() if has_forward(module) and any(True for _ in module.parameters())]
    layers = [layer for layer in layers if not any(has_forward(child) for child in layer.children())]
    learning = (layer for layer in layers if any(parameter.requires_grad for parameter in layer.parameters()))
    return next(learning, layers[0] if layers else None)
