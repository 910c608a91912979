"""Attention: of a transformers model eager or sdpa; else the backend of scaled_dot_product_attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from traceq.recorder.toggles.toggle import DEFAULT, Job

CANDIDATES = ("eager",)
_SWITCHES = ("math", "flash", "mem_efficient", "cudnn")
_BACKENDS = {"math": "math", "eager": "math", "flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn"}
_ALL = "sdpa"
_ATTENDS = re.compile("attention|attn|transformer", re.IGNORECASE)
_FUNCTION = "scaled_dot_product_attention"


class BackendToggle:
    """Which backends torch may dispatch to; it takes another one if the only one allowed does not fit the inputs."""

    changes_ops = True

    def __init__(self, values: Sequence[str]) -> None:
        self._values = values
        self._before = _enabled()

    def apply(self, number: int) -> None:
        """Allow the n-th backend only."""
        _enable(self._allowed(number))

    def fault(self, number: int) -> str:
        """Return what is allowed instead."""
        allowed = _enabled()
        return "" if allowed == self._allowed(number) else f"torch allows {', '.join(sorted(allowed))}"

    def restore(self) -> None:
        """Allow what the job allows."""
        _enable(self._before)

    def _allowed(self, number: int) -> frozenset[str]:
        value = self._values[number]
        if value == DEFAULT:
            return self._before
        return frozenset(_SWITCHES) if value == _ALL else frozenset([_BACKENDS[value]])


class ImplementationToggle:
    """The implementation of a transformers model, which its layers look up in each forward."""

    changes_ops = True

    def __init__(self, model: Any, values: Sequence[str]) -> None:
        self._model = model
        self._before = model.config._attn_implementation
        self._values = [self._before if value == DEFAULT else value for value in values]

    def apply(self, number: int) -> None:
        """Set the n-th implementation."""
        self._model.set_attn_implementation(self._values[number])

    def fault(self, number: int) -> str:
        """Return what the model has instead."""
        name = self._model.config._attn_implementation
        return "" if name == self._values[number] else f"the model has {name}"

    def restore(self) -> None:
        """Set the model's own implementation."""
        self._model.set_attn_implementation(self._before)


def is_used(job: Job) -> bool:
    """Return whether a module of the job is called attention, or its code calls torch's."""
    kinds = {type(module) for model in job.models for module in model.modules()}
    return any(_ATTENDS.search(kind.__name__) or _calls_attention(kind) for kind in kinds)


def _calls_attention(kind: type) -> bool:
    codes = (getattr(method, "__code__", None) for base in kind.__mro__ for method in vars(base).values())
    return any(code is not None and _FUNCTION in code.co_names for code in codes)


def create(job: Job, values: Sequence[str]) -> BackendToggle | ImplementationToggle:
    """Return the toggle; UsageFault for an unknown backend."""
    modules = (module for model in job.models for module in model.modules())
    model = next((module for module in modules if hasattr(module, "set_attn_implementation")), None)
    if model is not None and set(values) <= {DEFAULT, "eager", _ALL}:
        return ImplementationToggle(model, values)
    return BackendToggle(values)


def _enabled() -> frozenset[str]:
    return frozenset(name for name in _SWITCHES if getattr(torch.backends.cuda, f"{name}_sdp_enabled")())


def _enable(allowed: frozenset[str]) -> None:
    for name in _SWITCHES:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in allowed)
