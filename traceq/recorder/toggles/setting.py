"""A setting of the process that is read back after it is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from traceq.recorder.toggles.toggle import DEFAULT

__all__ = ["Setting"]


class Setting:
    """A function that sets the value and one that reads it; `values` may hold DEFAULT, the job's own."""

    changes_ops = False

    def __init__(self, setter: Callable[[Any], object], read: Callable[[], Any], values: Sequence[Any]) -> None:
        self._set, self._read = setter, read
        self._before = read()
        self._values = [self._before if value == DEFAULT else value for value in values]

    def apply(self, number: int) -> None:
        """Set the n-th value."""
        self._set(self._values[number])

    def fault(self, number: int) -> str:
        """Return what is read instead of the n-th value."""
        value = self._read()
        return "" if value == self._values[number] else f"it reads {value!r}"

    def restore(self) -> None:
        """Set the job's own value."""
        self._set(self._before)
