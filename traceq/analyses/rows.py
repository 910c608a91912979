"""Rows of a table that each rank has some of, and what a rule found there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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
    """What `rows` takes from the part of each rank, in their order."""
    return tuple(row for part in parts for row in rows(part))
