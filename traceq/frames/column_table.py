"""Table as columns of equal length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.entry_points import import_or_fault
from traceq.frozen import frozen


@frozen(eq=False)
class Texts:
    """Column of texts: `ids` int64[N] into `entries`; below 0 = no text."""

    ids: NDArray[np.int64]
    entries: Sequence[str]

    @property
    def values(self) -> NDArray[np.object_]:
        """Texts as object[N], None where there is none."""
        entries = np.array([*self.entries, None], object)
        texts: NDArray[np.object_] = entries[np.where(self.ids < 0, len(self.entries), self.ids)]
        return texts


ColumnValues = NDArray[np.int64] | NDArray[np.bool_] | Texts


@frozen(eq=False)
class Frame:
    """Table of a run; -1 = absent in columns of numbers."""

    name: str
    columns: Mapping[str, ColumnValues]

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return arrays by column name; texts as objects."""
        return {name: column.values if isinstance(column, Texts) else column for name, column in self.columns.items()}

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table. Raises TraceqError without pyarrow.

        Texts are dictionary-encoded: a name that occurs a million times is stored once.
        """
        arrow = import_or_fault("pyarrow")

        def array(column: ColumnValues) -> Any:
            if not isinstance(column, Texts):
                return arrow.array(column)
            ids = arrow.array(column.ids.astype(np.int32), mask=column.ids < 0)
            return arrow.DictionaryArray.from_arrays(ids, arrow.array(list(column.entries), arrow.string()))

        return arrow.table({name: array(column) for name, column in self.columns.items()})

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raises TraceqError without pandas."""
        return import_or_fault("pandas").DataFrame(self.to_numpy())

    def to_polars(self) -> Any:
        """Return a polars.DataFrame. Raises TraceqError without polars."""
        return import_or_fault("polars").DataFrame(self.to_numpy())


def concat_ranks(ranks: Iterable[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """Return the tables of all ranks, each of which has the same ones."""
    return tuple(map(concat_frames, zip(*ranks, strict=True)))


def concat_frames(frames: Sequence[Frame]) -> Frame:
    """Return the rows of tables with the same columns as one table."""
    first = frames[0]
    return Frame(
        first.name, {name: _concat_columns([frame.columns[name] for frame in frames]) for name in first.columns}
    )


def _concat_columns(parts: Sequence[ColumnValues]) -> ColumnValues:
    texts = [part for part in parts if isinstance(part, Texts)]
    if not texts:
        numbers: NDArray[np.int64] = np.concatenate([part for part in parts if not isinstance(part, Texts)])
        return numbers
    shifts = np.cumsum([0, *(len(part.entries) for part in texts)])
    ids = [np.where(part.ids < 0, -1, part.ids + shift) for part, shift in zip(texts, shifts.tolist(), strict=False)]
    return Texts(np.concatenate(ids), [text for part in texts for text in part.entries])
