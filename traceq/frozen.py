"""Frozen dataclasses that cost little to import, as a report needs three hundred of them.

`dataclasses.dataclass` compiles six methods of a frozen class and makes one with slots twice, which takes 0.3 ms;
`frozen` compiles none and takes a twentieth. Whatever works with dataclasses works with these: `fields`, `replace`,
`asdict`, `match`, msgspec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, replace
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["frozen"]

C = TypeVar("C")


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[C], /) -> type[C]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, eq: bool = True, slots: bool = True, weakref_slot: bool = False) -> Callable[[type[C]], type[C]]: ...
def frozen(cls: type[C] | None = None, /, *, eq: bool = True, slots: bool = True, weakref_slot: bool = False) -> Any:
    """Make a class what `dataclass(frozen=True, slots=True, ...)` makes of it; all of its fields are parameters."""

    def made(cls: Any) -> Any:
        by_name = _fields(cls)
        body = _SHARED | (_COMPARING if eq else {}) | (_PICKLED if slots else {}) | vars(cls)
        for name in (*by_name, "__dict__", "__weakref__"):
            body.pop(name, None)
        body |= {"__dataclass_fields__": by_name, "__dataclass_params__": _PARAMS, "__match_args__": tuple(by_name)}
        body["__doc__"] = cls.__doc__ or cls.__name__
        if slots:
            inherited = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
            body["__slots__"] = (*(name for name in by_name if name not in inherited), *["__weakref__"] * weakref_slot)
        else:
            body |= {name: each.default for name, each in by_name.items() if each.default is not MISSING}
        body["__qualname__"] = cls.__qualname__
        cls = type(cls)(cls.__name__, cls.__bases__, body)
        cls.__init__ = _init(cls)
        return cls

    return made if cls is None else made(cls)


def _fields(cls: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a class by name, those of its bases first. Raises ValueError for a mutable default."""
    by_name: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        by_name |= vars(base).get("__dataclass_fields__", {})
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if "ClassVar" in str(annotation):
            continue
        default = vars(cls).get(name, MISSING)
        each: Field[Any] = default if isinstance(default, Field) else field(default=default)
        if type(each.default).__hash__ is None:
            raise ValueError(f"{cls.__qualname__}.{name}: a default that is a {type(each.default).__name__} is shared")
        each.name, each.type, each.kw_only = name, annotation, False
        each._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
        by_name[name] = each
    return by_name


def _init(cls: type[Any]) -> Callable[..., None]:
    """Return `__init__` of a class whose fields are known."""
    by_name, set_field = cls.__dataclass_fields__, object.__setattr__
    names, num, is_checked = tuple(by_name), len(by_name), hasattr(cls, "__post_init__")

    def __init__(self: Any, /, *values: Any, **named: Any) -> None:  # noqa: N807
        if len(values) != num:
            for name in names[len(values) :]:
                if name not in named:
                    named[name] = _default(by_name[name], cls)
        if len(values) + len(named) != num:
            surplus = ", ".join(set(named).difference(names[len(values) :])) or f"{len(values)} values"
            raise TypeError(f"{cls.__qualname__}.__init__() does not take {surplus}")
        for name, value in zip(names, values):  # noqa: B905 - those after them have names
            set_field(self, name, value)
        for name, value in named.items():
            set_field(self, name, value)
        if is_checked:
            self.__post_init__()

    return __init__


def _default(each: Field[Any], cls: type[Any]) -> Any:
    """Return what a field holds that is not given. Raises TypeError."""
    if each.default is not MISSING:
        return each.default
    if each.default_factory is not MISSING:
        return each.default_factory()
    raise TypeError(f"{cls.__qualname__}.__init__() misses {each.name!r}")


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


def _compared(instance: Any) -> tuple[Any, ...]:
    return tuple([getattr(instance, name) for name, each in instance.__dataclass_fields__.items() if each.compare])


def _eq(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


_PARAMS = dataclass(init=False, repr=False, eq=False)(type("_", (), {"__doc__": "None."})).__dataclass_params__  # type: ignore[attr-defined]
_SHARED = {"__repr__": _repr, "__setattr__": _setattr, "__delattr__": _delattr, "__replace__": replace}
_PICKLED = {"__getstate__": _values, "__setstate__": _setstate}
_COMPARING = {"__eq__": _eq, "__hash__": _hash}
