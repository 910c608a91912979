"""What torch.compile has made of the models of a job: a function that it has traced must not be replaced.

Dynamo guards on the functions that it inlined, with their defaults: another one in their place compiles the job anew,
or ends it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from types import CodeType

import msgspec
from torch.nn import Module

from traceq.recorder.toggles.compile import has_compiled

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
