"""Calls as ranks are compared by them: the columns that one rank's calls and all ranks' share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

__all__ = ["CollectiveColumns", "concat"]


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveColumns:
    """C calls, int64[C]: `name` into NAMES; `elements` that must agree across ranks; `size` bytes; `group_size`;
    `sequence`; `step` of ProfilerStep#N; `at`, when the host issued it, `start` and `end`, when it ran, absolute ns;
    `row` into the rank's Events or Flight. -1 = absent.
    """

    name: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    group_size: NDArray[np.int64]
    sequence: NDArray[np.int64]
    step: NDArray[np.int64]
    at: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row)

    def some(self, chosen: NDArray[np.bool_]) -> CollectiveColumns:
        """Some of them."""
        return CollectiveColumns(**{column.name: getattr(self, column.name)[chosen] for column in fields(self)})

    @classmethod
    def of_all(cls, parts: Sequence[CollectiveColumns]) -> CollectiveColumns:
        """Those of several ranks, one after the other."""
        return cls(**{column.name: concat([getattr(part, column.name) for part in parts]) for column in fields(cls)})


def concat(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """One column of several; none of none."""
    return np.concatenate(columns) if columns else np.empty(0, np.int64)
