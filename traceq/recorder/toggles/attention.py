"""Attention: of a transformers model eager or sdpa; else the backend of scaled_dot_product_attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from traceq.recorder.toggles.settings import Setting
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


def is_used(job: Job) -> bool:
    """Return whether a module of the job is called attention, or its code calls torch's."""
    kinds = {type(module) for model in job.models for module in model.modules()}
    return any(_ATTENDS.search(kind.__name__) or _calls_attention(kind) for kind in kinds)


def _calls_attention(kind: type) -> bool:
    codes = (getattr(method, "__code__", None) for base in kind.__mro__ for method in vars(base).values())
    return any(code is not None and _FUNCTION in code.co_names for code in codes)


def create(job: Job, values: Sequence[str]) -> BackendToggle | Setting:
    """Return the toggle; UsageFault for an unknown backend."""
    modules = (module for model in job.models for module in model.modules())
    model = next((module for module in modules if hasattr(module, "set_attn_implementation")), None)
    if model is not None and set(values) <= {DEFAULT, "eager", _ALL}:
        own: Any = model  # its layers look it up in each forward
        return Setting(own.set_attn_implementation, lambda: own.config._attn_implementation, values, changes_ops=True)
    return BackendToggle(values)


def _enabled() -> frozenset[str]:
    return frozenset(name for name in _SWITCHES if getattr(torch.backends.cuda, f"{name}_sdp_enabled")())


def _enable(allowed: frozenset[str]) -> None:
    for name in _SWITCHES:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in allowed)
