"""Microseconds for which the first layer of the largest model waits: a known cost, to see what traceq finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from torch.nn import Module

from traceq.errors import RecordingFailed, UsageFault
from traceq.recorder.rank.replaced_methods import ReplacedMethods, has_forward
from traceq.recorder.toggles.toggle import Job

_MOST_CHANGES = 32
"""Changes of the value after which a layer should have been called, also where all arms are tried before any step."""
_MOST_LAYERS = 8
"""Layers of a model of which one should be called."""


class StallToggle:
    """A busy wait of `values` us before each call of one layer: the first of `layers` that the steps call.

    Some models are called by other methods, or hold a copy of another one.
    """

    changes_ops = False

    def __init__(self, layers: Sequence[Module], models: Sequence[Module], values: Sequence[float]) -> None:
        self._values = values
        self._wait_ns = 0
        self._num_changes = 0
        self._called: set[int] = set()
        self._chosen: int | None = None
        self._hooked: set[int] = set()  # layers whose hook has begun the call that their forward begins next
        self._handles = [
            layer.register_forward_pre_hook(lambda *_, number=number: self._begin_hooked(number))
            for number, layer in enumerate(layers)
        ]
        self._replaced = _replaced_forwards(layers, models, self._begin_forward)

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
        self._replaced.restore()

    def _choose(self) -> None:
        """Let the first layer that was called wait, and forget the others."""
        self._num_changes += 1
        if self._called:
            self._chosen = min(self._called)
            for number, handle in enumerate(self._handles):
                if number != self._chosen:
                    handle.remove()
        elif self._num_changes > _MOST_CHANGES:
            raise RecordingFailed("@stall: the steps call the first layers of no model")

    def _begin_hooked(self, number: int) -> None:
        self._hooked.add(number)
        self._begin(number)

    def _begin_forward(self, number: int) -> None:
        if number in self._hooked:
            self._hooked.discard(number)
        else:
            self._begin(number)

    def _begin(self, number: int) -> None:
        if self._chosen is None:
            self._called.add(number)
        elif number == self._chosen:
            end_ns = perf_counter_ns() + self._wait_ns
            while perf_counter_ns() < end_ns:
                pass


def create(job: Job, values: Sequence[str]) -> StallToggle:
    """Return the toggle; UsageFault if there is no model, or for a value that is no number."""
    layers = [layer for model in job.models for layer in _first_layers(model)]
    if not layers:
        raise UsageFault("no model with parameters was found" if job.models else "no model was found")
    try:
        return StallToggle(layers, job.models, [float(value) for value in values])
    except ValueError as error:
        raise UsageFault(f"expected microseconds: {error}") from error


def _replaced_forwards(
    layers: Sequence[Module], models: Sequence[Module], begin: Callable[[int], None]
) -> ReplacedMethods:
    """Let forwards begin with `begin(number)`, where they may be called past hooks.

    Layers do so whose class has its own `__call__`, as those of GPyTorch; of a layer that is a model, the loop may.
    """
    numbers = {id(layer): number for number, layer in enumerate(layers)}
    past_hooks = {id(model) for model in models} | {
        id(layer) for layer in layers if type(layer).__call__ is not Module.__call__
    }
    calling = [each for each in layers if id(each) in past_hooks and "forward" not in vars(each)]

    def beginning(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(layer: Module, *args: Any, **kwargs: Any) -> Any:
            begin(numbers[id(layer)])
            return forward(layer, *args, **kwargs)

        return call

    return ReplacedMethods(calling, beginning)


def _first_layers(model: Module) -> list[Module]:
    """Return the first modules with parameters that call no other one: of those that learn, if there are any.

    The very first may be called by nobody, as an embedding that others hold a copy of. Modules without parameters
    inside of a layer, such as its activation, are a part of it.
    """
    modules = [module for module in model.modules() if has_forward(module) and any(True for _ in module.parameters())]
    ids = {id(module) for module in modules}
    layers = [each for each in modules if not any(id(inner) in ids for inner in list(each.modules())[1:])]
    learning = [layer for layer in layers if any(parameter.requires_grad for parameter in layer.parameters())]
    return (learning or layers)[:_MOST_LAYERS]
