"""The models of a process that no other module contains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import ReferenceType

from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from traceq.garbage_collection import live_objects
from traceq.recorder.rank.replaced_methods import has_forward


def find_roots() -> list[Module]:
    """Return modules with parameters that no other module contains, the largest first.

    Inspects all objects of the process, which takes 0.1 s.
    """
    modules = [each for each in live_objects() if issubclass(type(each), Module) and "_modules" in vars(each)]
    children = {id(child) for module in modules for child in vars(module)["_modules"].values() if child is not None}
    sizes = {id(each): _num_parameters(each) for each in modules if id(each) not in children}
    roots = [module for module in modules if sizes.get(id(module))]
    return sorted(roots, key=lambda module: -sizes[id(module)])


def with_forward(models: Sequence[Module]) -> list[Module]:
    """Return the models; instead of one without a forward the outermost modules in it that have one.

    With one of DDP also the module that it wraps: evaluations often call that alone. An agent of reinforcement learning
    often has no forward: its loop calls methods that call an actor and a critic.
    """
    return [each for model in models for each in _outermost_with_forward(model)]


def inner_with_forward(models: Sequence[Module]) -> list[Module]:
    """Return the outermost modules inside the models that have a forward, each once.

    A loop may call other methods of a model than its forward (`model.loss(batch)`), which call these.
    """
    children = [child for model in models for child in model.children()]
    return list(dict.fromkeys(with_forward(children)))


def living(models: Sequence[ReferenceType[Module]]) -> list[Module]:
    """Return those of some models that something else still refers to."""
    return [model for each in models if (model := each()) is not None]


def _outermost_with_forward(module: Module) -> Iterator[Module]:
    if has_forward(module):
        yield module
        if isinstance(module, DataParallel | DistributedDataParallel):
            yield from _outermost_with_forward(module.module)
        return
    for child in module.children():
        yield from _outermost_with_forward(child)


def _num_parameters(module: Module) -> int:
    """Return the number of elements; a lazy parameter without a shape yet counts as one."""
    return sum(1 if is_lazy(parameter) else parameter.numel() for parameter in module.parameters())
