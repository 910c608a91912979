"""Frozen dataclasses with slots that cost little to import, as a report needs two hundred of them.

`dataclasses.dataclass` compiles six methods of a frozen class, which takes 0.5 ms; `frozen` compiles `__init__`, once
the first instance is made, and shares the others. Whatever works with dataclasses works with these: `fields`,
`replace`, `asdict`, `match`, msgspec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["frozen"]

C = TypeVar("C")


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[C], /) -> type[C]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, eq: bool = True) -> Callable[[type[C]], type[C]]: ...
def frozen(cls: type[C] | None = None, /, *, eq: bool = True) -> Any:
    """Make a class what `dataclass(frozen=True, slots=True, eq=eq)` makes of it; all of its fields are parameters."""

    def made(cls: type[C]) -> type[C]:
        methods = _SHARED | (_COMPARING if eq else {})
        written = [name for name in methods if name in vars(cls)]
        cls = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
        for name, method in methods.items():
            if name not in written:
                setattr(cls, name, method)
        cls.__init__ = _compiled_later(cls)  # type: ignore[method-assign]
        return cls

    return made if cls is None else made(cls)


def _compiled_later(cls: type[Any]) -> Callable[..., None]:
    """Return an `__init__` that compiles the one that replaces it."""

    def compile_init(self: Any, *values: Any, **named: Any) -> None:
        cls.__init__ = init = _init(cls)
        init(self, *values, **named)

    return compile_init


def _init(cls: type[Any]) -> Callable[..., None]:
    """Return `__init__`, compiled for the fields of a dataclass."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    parameters, lines = [], []
    for each in fields(cls):
        name, value = each.name, each.name
        if each.default is not MISSING:
            scope[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        elif each.default_factory is not MISSING:
            scope[f"_make_{name}"] = each.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        lines.append(f" _set(self, {name!r}, {value})\n")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()\n")
    exec(f"def __init__({', '.join(['self', *parameters])}):\n{''.join(lines) or ' pass'}", scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _values(instance: Any) -> tuple[Any, ...]:
    return tuple([getattr(instance, name) for name in instance.__dataclass_fields__])


def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _setattr(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _setstate(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


_SHARED = {
    "__repr__": _repr,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getstate__": _values,
    "__setstate__": _setstate,
}
_COMPARING = {"__eq__": _eq, "__hash__": _hash}
