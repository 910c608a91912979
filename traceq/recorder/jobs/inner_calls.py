"""Modules inside the models of a job that its loop calls itself, beside the forward of the model or instead of it.

A loss may hold the model and be given only what that computed; an agent has several networks; and some libraries wrap
the model anew in each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from weakref import ref

import torch
from torch.nn import Module

from traceq.recorder.rank.replaced_methods import ReplacedMethods, Replacement, has_forward

__all__ = ["InnerCalls"]

_LEAST_CALLS = 4
"""Calls while steps are learned: what a loop calls more rarely is no part of its usual step."""


class InnerCalls:
    """Calls of the modules inside some models: each that is outside of any forward or backward is one, as of a model.

    `forward` returns what replaces their forward, and calls `count` for such calls.
    """

    def __init__(self, models: Sequence[Module], forward: Replacement) -> None:
        self._num_calls: Counter[int] = Counter()  # by the module's id
        modules = _inner_modules(models)
        self._modules = {id(module): ref(module) for module in modules}  # the job may want to free them
        self._methods = ReplacedMethods(modules, forward)

    def count(self, module: Module) -> None:
        """Count a call."""
        self._num_calls[id(module)] += 1

    def take(self) -> list[Module]:
        """Count no more; return the modules that a usual step calls, and that still exist."""
        self._methods.restore()
        numbers = [number for number in self._modules if self._num_calls[number] >= _LEAST_CALLS]
        return [module for number in numbers if (module := self._modules[number]()) is not None]


def _inner_modules(models: Sequence[Module]) -> list[Module]:
    """Return the modules with parameters and a forward of their class inside the models, each once."""
    outermost = {id(model) for model in models}
    inner = dict.fromkeys(module for model in models for module in model.modules())
    return [module for module in inner if id(module) not in outermost and _is_watchable(module)]


def _is_watchable(module: Module) -> bool:
    attributes = vars(module)
    is_plain = "forward" not in attributes and not attributes.get("_compiled_call_impl")
    has_parameters = any(True for _ in module.parameters())
    return is_plain and has_parameters and has_forward(module) and not isinstance(module, torch.jit.ScriptModule)
