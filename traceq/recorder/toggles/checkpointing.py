"""Activation checkpointing of the model's repeated blocks: off or on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Module, ModuleList, Sequential
from torch.utils.checkpoint import checkpoint

from traceq.errors import UsageFault
from traceq.recorder.rank.replaced_methods import ReplacedMethods, has_forward
from traceq.recorder.toggles.settings import Setting, are_on
from traceq.recorder.toggles.toggle import Job

CANDIDATES = ("on",)

_LEAST_SHARE = 0.05
"""Part of the parameters that blocks have more than: lists of norms or of heads save next to nothing."""


class BlocksToggle:
    """Blocks of the largest list of modules, called under torch.utils.checkpoint while on."""

    changes_ops = True

    def __init__(self, blocks: Sequence[Module], values: Sequence[str]) -> None:
        self._is_on = False
        self._values = values
        self._forwards = ReplacedMethods(blocks, self._checkpointed)

    def apply(self, number: int) -> None:
        """Turn it on or off for the next forward."""
        self._is_on = self._values[number] == "on"

    def fault(self, number: int) -> str:
        """Return ""; that it has an effect shows in the ops."""
        return ""

    def restore(self) -> None:
        """Restore the forwards."""
        self._forwards.restore()

    def _checkpointed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_on and torch.is_grad_enabled():
                return checkpoint(forward, *args, use_reentrant=False, **kwargs)
            return forward(*args, **kwargs)

        return call


def _of_methods(model: Any, values: Sequence[str]) -> Setting:
    """Return the toggle of a model of transformers, which has methods for it."""

    def set_checkpointing(is_on: bool) -> None:
        if is_on:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()

    return Setting(set_checkpointing, lambda: bool(model.is_gradient_checkpointing), are_on(values), changes_ops=True)


def create(job: Job, values: Sequence[str]) -> BlocksToggle | Setting:
    """Return the toggle; UsageFault for a job without repeated blocks that have a part of its parameters."""
    modules = [module for model in job.models for module in model.modules()]
    for module in modules:
        if hasattr(module, "gradient_checkpointing_enable"):
            return _of_methods(module, values)
    lists = [list(module.children()) for module in modules if isinstance(module, ModuleList | Sequential)]
    repeated = [
        blocks for blocks in lists if len(blocks) > 1 and len(set(map(type, blocks))) == 1 and has_forward(blocks[0])
    ]
    blocks = max(repeated, key=lambda blocks: sum(map(_num_parameters, blocks)), default=[])
    num_parameters = sum(map(_num_parameters, job.models))
    if not blocks or sum(map(_num_parameters, blocks)) <= _LEAST_SHARE * num_parameters:
        raise UsageFault("the models have no list of blocks of one class")
    return BlocksToggle(blocks, values)


def _num_parameters(module: Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
