"""Rows of a table that each rank contributes, the finding of a rule on that rank, and sums of rows over ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import add
from typing import Any, Generic, Protocol, TypeVar

from traceq.claims.claim import Claim
from traceq.facts.ranks.job import LazySequence
from traceq.frozen import frozen

Identity = TypeVar("Identity", bound=Hashable)
Number = TypeVar("Number", int, float)
P = TypeVar("P")
Row = TypeVar("Row")
Row_co = TypeVar("Row_co", covariant=True)
Summed = TypeVar("Summed", bound=Any)


@frozen
class Part(Generic[Row]):
    """One rank's rows of a table, and the finding of a rule on that rank."""

    rows: tuple[Row, ...]
    finding: Claim | None = None


class _HasRows(Protocol[Row_co]):
    @property
    def rows(self) -> Sequence[Row_co]: ...


def of_all(parts: Sequence[_HasRows[Row]]) -> Sequence[Row]:
    """Return the rows of all ranks, in the order of the ranks."""
    return each_of(parts, lambda part: part.rows)


def each_of(parts: Sequence[P], rows: Callable[[P], Sequence[Row]]) -> Sequence[Row]:
    """Return the `rows` of the part of each rank, in the order of the ranks.

    Rows of parts that are not in memory at once are read anew on each iteration.
    """
    if isinstance(parts, LazySequence):
        return _LazyRows(parts, rows)
    return tuple(row for part in parts for row in rows(part))


def largest_sums(
    rows: Iterable[Row], identity: Callable[[Row], Identity], values: Callable[[Row], tuple[Number, ...]]
) -> list[tuple[Identity, tuple[Number, ...]]]:
    """Return (identity, sums of `values`) of rows with equal identity, by their last sum in descending order."""
    sums: dict[Identity, tuple[Number, ...]] = {}
    for row in rows:
        key, new = identity(row), values(row)
        sums[key] = tuple(map(add, sums[key], new)) if key in sums else new
    return sorted(sums.items(), key=lambda item: -item[1][-1])


def summed(rows: Sequence[Summed], *names: str) -> Summed:
    """Return the first row with the sums of some of its columns over all rows."""
    return replace(rows[0], **{name: sum(getattr(row, name) for row in rows) for name in names})


class _LazyRows(Sequence[Row], Generic[P, Row]):
    """Rows of all parts, read anew on each iteration."""

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

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]
