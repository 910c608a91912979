"""Frozen dataclasses that cost little to import, as a report needs three hundred of them.

`dataclasses.dataclass` compiles six methods of a frozen class, which takes 0.5 ms; `frozen` compiles none. Whatever
works with dataclasses works with these: `fields`, `replace`, `asdict`, `match`, msgspec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
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

    def made(cls: type[C]) -> type[C]:
        methods = _SHARED | (_COMPARING if eq else {}) | (_PICKLED if slots else {})
        written = [name for name in methods if name in vars(cls)]
        if not cls.__doc__:
            cls.__doc__ = cls.__name__  # else dataclass would parse a signature for one: 2 ms the first time
        cls = dataclass(init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot)(cls)
        for name, method in methods.items():
            if name not in written:
                setattr(cls, name, method)
        cls.__init__ = _init(cls)  # type: ignore[method-assign]
        return cls

    return made if cls is None else made(cls)


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


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


_SHARED = {"__repr__": _repr, "__setattr__": _setattr, "__delattr__": _delattr}
_PICKLED = {"__getstate__": _values, "__setstate__": _setstate}
_COMPARING = {"__eq__": _eq, "__hash__": _hash}
