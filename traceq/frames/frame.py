"""A table as columns of one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault

__all__ = ["ColumnValues", "Frame", "Texts", "stacked"]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A column of texts: `ids` int64[N] into `known`; below 0 = no text."""

    ids: NDArray[np.int64]
    known: Sequence[str]

    @property
    def values(self) -> NDArray[np.object_]:
        """The texts themselves, None where there is none: object[N]."""
        known = np.array([*self.known, None], object)
        texts: NDArray[np.object_] = known[np.where(self.ids < 0, len(self.known), self.ids)]
        return texts


ColumnValues = NDArray[np.int64] | NDArray[np.bool_] | Texts


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A table of a run; -1 = absent in columns of numbers."""

    name: str
    columns: Mapping[str, ColumnValues]

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Arrays by name of column; texts as objects."""
        return {name: found.values if isinstance(found, Texts) else found for name, found in self.columns.items()}

    def to_arrow(self) -> Any:
        """A pyarrow.Table; texts as dictionaries, so a name that stands a million times is held once.

        Raises UsageFault without pyarrow.
        """
        arrow = _needed("pyarrow")

        def array(found: ColumnValues) -> Any:
            if not isinstance(found, Texts):
                return arrow.array(found)
            ids = arrow.array(found.ids.astype(np.int32), mask=found.ids < 0)
            return arrow.DictionaryArray.from_arrays(ids, arrow.array(list(found.known), arrow.string()))

        return arrow.table({name: array(found) for name, found in self.columns.items()})

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. Raises UsageFault without pandas."""
        return _needed("pandas").DataFrame(self.to_numpy())

    def to_polars(self) -> Any:
        """A polars.DataFrame. Raises UsageFault without polars."""
        return _needed("polars").DataFrame(self.to_numpy())


def stacked(frames: Sequence[Frame]) -> Frame:
    """Tables of one name, one below the other, as one."""
    first = frames[0]
    return Frame(first.name, {name: _joined([frame.columns[name] for frame in frames]) for name in first.columns})


def _joined(parts: Sequence[ColumnValues]) -> ColumnValues:
    texts = [part for part in parts if isinstance(part, Texts)]
    if not texts:
        numbers: NDArray[np.int64] = np.concatenate([part for part in parts if not isinstance(part, Texts)])
        return numbers
    before = np.cumsum([0, *(len(part.known) for part in texts)])
    ids = [np.where(part.ids < 0, -1, part.ids + shift) for part, shift in zip(texts, before.tolist(), strict=False)]
    return Texts(np.concatenate(ids), [text for part in texts for text in part.known])


def _needed(package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError:
        raise UsageFault(f"{package} is not installed: pip install {package}") from None
