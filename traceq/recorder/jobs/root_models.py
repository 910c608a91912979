"""The models of a process that no other module contains, and calls of their forward."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.nn import Module

__all__ = ["ForwardHooks", "find_roots"]

Observed = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Turns a forward into one that is observed."""


def find_roots() -> list[Module]:
    """Return modules with parameters that no other module contains, the largest first.

    Inspects all objects of the process, which takes 0.1 s.
    """
    modules = [each for each in gc.get_objects() if issubclass(type(each), Module) and "_modules" in vars(each)]
    children = {id(child) for module in modules for child in vars(module)["_modules"].values() if child is not None}
    sizes = {id(each): _num_parameters(each) for each in modules if id(each) not in children}
    roots = [module for module in modules if sizes.get(id(module))]
    return sorted(roots, key=lambda module: -sizes[id(module)])


def _num_parameters(module: Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class ForwardHooks:
    """Replaced forwards of models, until they are restored.

    The class is patched, not the instance, so that a copy of a model does not call the forward of the original; only
    what is in the instance already is patched there. No hooks of torch are used: trainers also call `model.forward`.
    """

    __slots__ = ("_restore",)

    def __init__(self, models: list[Module], observed: Observed) -> None:
        self._restore: list[Callable[[], None]] = []
        roots = {id(model) for model in models}
        for model in models:
            if isinstance(model, torch.jit.ScriptModule):
                continue
            name = "_compiled_call_impl" if vars(model).get("_compiled_call_impl") else "forward"
            if name in vars(model):
                self._patch(model, name, observed(vars(model)[name]))
            elif not _is_patched(type(model)):
                self._patch(type(model), name, _of_roots(type(model).forward, observed, roots))

    def remove(self) -> None:
        """Restore all forwards."""
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


def _is_patched(cls: type) -> bool:
    return hasattr(vars(cls).get("forward"), "of_roots")


def _of_roots(forward: Callable[..., Any], observed: Observed, roots: set[int]) -> Callable[..., Any]:
    """Return a forward of a class that is observed for the roots only."""
    observed_forward = observed(forward)

    @functools.wraps(forward)
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or id(self) not in roots:
            return forward(self, *args, **kwargs)
        return observed_forward(self, *args, **kwargs)

    call.of_roots = roots  # type: ignore[attr-defined]
    return call
