"""Frozen dataclasses with slots, of which all rows, facts and claims are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform, overload

C = TypeVar("C")


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[C], /) -> type[C]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, eq: bool = True, slots: bool = True, weakref_slot: bool = False) -> Callable[[type[C]], type[C]]: ...
def frozen(cls: type[C] | None = None, /, *, eq: bool = True, slots: bool = True, weakref_slot: bool = False) -> Any:
    """Make a class a frozen dataclass, with slots unless it caches what follows from its fields."""
    make = dataclass(frozen=True, eq=eq, slots=slots, weakref_slot=weakref_slot)
    return make if cls is None else make(cls)
