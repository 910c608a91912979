"""Methods of some models, such as their forward, replaced until they are restored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn import Module

Replacement = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns the function to call instead of a method."""


def has_forward(module: Module) -> bool:
    """Return whether a module can be called; lists of modules and parameters cannot."""
    return "forward" in vars(module) or type(module).forward is not Module.forward


class ReplacedMethods:
    """A method of models, each replaced by `replacement(method)`.

    The class is patched, not the instance, so that a copy of a model does not call the forward of the original; only
    what is in the instance already is patched there. No hooks of torch are used: trainers also call `model.forward`.
    """

    __slots__ = ("_restore",)

    def __init__(self, models: Sequence[Module], replacement: Replacement, method: str = "forward") -> None:
        self._restore: list[Callable[[], None]] = []
        in_classes: dict[type[Module], set[int]] = {}
        for model in models:
            is_compiled = method == "forward" and vars(model).get("_compiled_call_impl")
            name = "_compiled_call_impl" if is_compiled else method
            if name in vars(model):
                self._patch(model, name, replacement(vars(model)[name]))
            elif not isinstance(model, torch.jit.ScriptModule):
                in_classes.setdefault(type(model), set()).add(id(model))
        for class_, ids in in_classes.items():
            self._patch(class_, method, _for_some(getattr(class_, method), replacement, ids))

    def restore(self) -> None:
        """Restore all methods."""
        while self._restore:
            self._restore.pop()()

    def _patch(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        if name in vars(owner):
            self._restore.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._restore.append(functools.partial(_delete, owner, name))
        setattr(owner, name, function)


def _delete(owner: Any, name: str) -> None:
    with suppress(AttributeError):
        delattr(owner, name)


def _for_some(method: Callable[..., Any], replacement: Replacement, ids: set[int]) -> Callable[..., Any]:
    """Return the method of a class that calls the replacement for the instances with these ids."""
    replaced = replacement(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or id(args[0]) not in ids:
            return method(*args, **kwargs)
        return replaced(*args, **kwargs)

    return call
