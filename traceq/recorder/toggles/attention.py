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
_ALL = "sdpa"
_BACKENDS = {
    "math": ("math",),
    "eager": ("math",),
    "flash": ("flash",),
    "efficient": ("mem_efficient",),
    "cudnn": ("cudnn",),
    _ALL: _SWITCHES,
}
_ATTENDS = re.compile("attention|attn|transformer", re.IGNORECASE)
_FUNCTION = "scaled_dot_product_attention"


def is_used(job: Job) -> bool:
    """Return whether a module of the job is called attention, or its code calls torch's."""
    kinds = {type(module) for model in job.models for module in model.modules()}
    return any(_ATTENDS.search(kind.__name__) or _calls_attention(kind) for kind in kinds)


def _calls_attention(kind: type) -> bool:
    codes = (getattr(method, "__code__", None) for base in kind.__mro__ for method in vars(base).values())
    return any(code is not None and _FUNCTION in code.co_names for code in codes)


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle: the implementation of a transformers model, else which backends torch may dispatch to.

    Torch takes another backend if the only one allowed does not fit the inputs.
    """
    modules = (module for model in job.models for module in model.modules())
    model: Any = next((module for module in modules if hasattr(module, "set_attn_implementation")), None)
    if model is not None and set(values) <= {DEFAULT, "eager", _ALL}:  # its layers look it up in each forward
        return Setting(
            model.set_attn_implementation, lambda: model.config._attn_implementation, values, changes_ops=True
        )
    return Setting(_allow, _allowed, [_BACKENDS.get(value, value) for value in values], changes_ops=True)


def _allowed() -> tuple[str, ...]:
    return tuple(name for name in _SWITCHES if getattr(torch.backends.cuda, f"{name}_sdp_enabled")())


def _allow(names: Sequence[str]) -> None:
    for name in _SWITCHES:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in names)
