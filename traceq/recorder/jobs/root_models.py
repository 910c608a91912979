"""The models of a process that no other module contains, and what torch.compile has made of them.

A function that it has traced must not be replaced. Dynamo guards on the functions that it inlined, with their defaults:
another one in their place compiles the job anew, or ends it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from types import CodeType
from weakref import ReferenceType

import msgspec
from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from traceq.garbage_collection import live_objects
from traceq.recorder.rank.replaced_methods import has_forward
from traceq.recorder.toggles.settings import has_compiled


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


COMPILED = "compiled"
"""Key in a manifest's environment of what `compiled_functions` returns."""


def _is_compiled(module: Module) -> bool:
    """Return whether calls of this module run compiled: by `torch.compile(module)` or `module.compile()`.

    Also one whose own `forward` was compiled. What such an instance holds is called around the compiled code.
    """
    attributes = vars(module)
    return bool(attributes.get("_compiled_call_impl")) or hasattr(
        attributes.get("forward"), "_torchdynamo_orig_callable"
    )


def compiled_modules(models: Sequence[Module]) -> list[Module]:
    """Return the modules among and inside the models whose calls run compiled, or will."""
    return [module for model in models for module in model.modules() if _is_compiled(module)]


def replaceable(models: Sequence[Module]) -> list[Module]:
    """Return the models whose forward may be replaced: compiled ones, and those that no compiled code contains.

    If functions were compiled, and no modules, they may call any of them: none is replaceable.
    """
    compiled = compiled_modules(models)
    if not compiled:
        return [] if has_compiled() else list(models)
    traced = {type(part) for module in compiled for part in module.modules()}
    return [model for model in models if _is_compiled(model) or type(model) not in traced]


def skip_own_code() -> None:
    """Let Dynamo compile no function of traceq that code calls which it has compiled in part.

    It still traces through one that compiled code calls. To be called once torch.compile is.
    """
    from torch._dynamo.eval_frame import skip_code

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == __name__.partition(".")[0]:
            for code in _codes_of(module, name):
                skip_code(code)


def _codes_of(owner: object, module: str) -> Iterator[CodeType]:
    """Yield the code of all functions of a module or class, and of those inside them."""
    for value in list(vars(owner).values()):
        function = inspect.unwrap(getattr(value, "fget", value))
        if getattr(function, "__module__", "") != module:
            continue
        if inspect.isclass(function):
            yield from _codes_of(function, module)
        elif inspect.isfunction(function):
            yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner(inner)


def compiled_functions(since_s: float) -> str:
    """Return the functions that torch has compiled since a time (of the epoch), by torch's own last 64 records.

    They are JSON, the one that took longest first: name, file, line, how often, the seconds of all together, and the
    guard that failed last, "" for a first compilation.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    functions: dict[tuple[str, str, int], dict[str, str | int | float]] = {}
    for record in utils.get_compilation_metrics() if utils is not None else ():
        if record.co_name and (record.start_time or 0.0) >= since_s:
            name, file, line = key = record.co_name, record.co_filename or "", record.co_firstlineno or 0
            entry = functions.setdefault(key, {"name": name, "file": file, "line": line, "count": 0, "s": 0.0})
            entry["count"] = int(entry["count"]) + 1
            entry["s"] = float(entry["s"]) + (record.entire_frame_compile_time_s or 0.0)
            reason = (getattr(record, "recompile_reason", None) or "").partition("\n")[0]
            entry["reason"] = reason.partition(": ")[2]  # behind the number of the compiled code
    longest_first = sorted(functions.values(), key=lambda entry: -float(entry["s"]))
    return msgspec.json.encode(longest_first).decode() if longest_first else ""
