"""Frozen classes with slots, of which all rows, facts and claims are made.

They are structs of msgspec that `dataclasses.fields`, `replace` and `asdict` take for dataclasses: `traceq show` makes
some four hundred of them whenever it starts, and the standard library compiles the methods of each anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field
from inspect import get_annotations
from typing import Any, TypeVar, cast, dataclass_transform, overload

import msgspec

C = TypeVar("C")


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[C], /) -> type[C]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, eq: bool = True, slots: bool = True, weakref_slot: bool = False) -> Callable[[type[C]], type[C]]: ...
def frozen(cls: type[C] | None = None, /, *, eq: bool = True, slots: bool = True, weakref_slot: bool = False) -> Any:
    """Make a class frozen, with options of a dataclass, and with slots unless it caches what follows from its fields.

    One whose metaclass is another, such as that of abstract classes, becomes a dataclass.
    """

    def make(cls: type[C]) -> type[Any]:
        annotations = get_annotations(cls)
        if issubclass(cls, msgspec.Struct):  # as what it extends is one
            extended: Any = cls
            further = {name: _field(name, kind, MISSING) for name, kind in annotations.items()}
            extended.__dataclass_fields__ = {**extended.__dataclass_fields__, **further}
            return cls
        if type(cls) is not type:
            return dataclass(frozen=True, eq=eq, slots=slots, weakref_slot=weakref_slot)(cls)
        namespace = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        declared = {name: _field(name, kind, namespace.pop(name, MISSING)) for name, kind in annotations.items()}
        namespace["__dataclass_fields__"] = declared
        return msgspec.defstruct(
            cls.__name__,
            [(each.name, each.type, _default(each)) for each in declared.values()],
            bases=(*(base for base in cls.__bases__ if base is not object), msgspec.Struct),
            namespace=namespace,
            frozen=True,
            eq=eq,
            dict=not slots,
            weakref=weakref_slot or not slots,
        )

    return make if cls is None else make(cls)


def _field(name: str, kind: Any, value: Any) -> Field[Any]:
    """Return the field of a dataclass that an annotation and its value declare."""
    declared: Any = value if isinstance(value, Field) else field(default=value)
    if not (declared.init and declared.repr and declared.compare):
        raise TypeError(f"{name}: no struct leaves a field out; use a frozen dataclass")
    # the last is private, and what `dataclasses.fields` looks at
    declared.name, declared.type, declared._field_type = name, kind, dataclasses._FIELD  # type: ignore[attr-defined]
    return cast(Field[Any], declared)


def _default(each: Field[Any]) -> Any:
    if each.default_factory is not MISSING:
        return msgspec.field(default_factory=each.default_factory)
    return msgspec.NODEFAULT if each.default is MISSING else each.default
