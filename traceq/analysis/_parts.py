"""Rows of a table that each rank has some of, and what a rule found there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from traceq.facts.ranks.job import LazySequence
from traceq.report import Finding

__all__ = ["Part", "each_of", "of_all"]

P = TypeVar("P")
Row = TypeVar("Row")
Row_co = TypeVar("Row_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Part(Generic[Row]):
    """One rank's rows of a table, and what a rule found on it."""

    rows: tuple[Row, ...]
    finding: Finding | None = None


class _HasRows(Protocol[Row_co]):
    @property
    def rows(self) -> Sequence[Row_co]: ...


def of_all(parts: Sequence[_HasRows[Row]]) -> Sequence[Row]:
    """The rows of all ranks, in their order."""
    return each_of(parts, lambda part: part.rows)


def each_of(parts: Sequence[P], rows: Callable[[P], Sequence[Row]]) -> Sequence[Row]:
    """What `rows` takes from the part of each rank, in their order; parts that are not in memory at once leave their
    rows where they are.
    """
    return (
        _Joined(parts, rows) if isinstance(parts, LazySequence) else tuple(row for part in parts for row in rows(part))
    )


class _Joined(Sequence[Row], Generic[P, Row]):
    """Rows of all parts, taken anew each time that they are gone through."""

    def __init__(self, parts: Sequence[P], rows: Callable[[P], Sequence[Row]]) -> None:
        self._parts, self._rows = parts, rows

    def __iter__(self) -> Iterator[Row]:
        for part in self._parts:
            yield from self._rows(part)

    @cached_property
    def _len(self) -> int:
        return sum(len(self._rows(part)) for part in self._parts)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]
