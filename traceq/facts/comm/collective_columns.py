"""Columns of collective calls by which ranks are compared, of one rank or of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen

__all__ = ["CollectiveColumns", "concat"]


@frozen(eq=False)
class CollectiveColumns:
    """C collective calls, one int64[C] per column; -1 = absent.

    `name` into COLLECTIVE_NAMES; `elements` that must agree across ranks; `size` bytes; `group_size`; `sequence`;
    `step` of ProfilerStep#N; `issued_ns`, when the host issued it, `start` and `end`, when it ran, all absolute ns;
    `row` into the rank's Events or Flight.
    """

    name: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    group_size: NDArray[np.int64]
    sequence: NDArray[np.int64]
    step: NDArray[np.int64]
    issued_ns: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row)

    def select(self, mask: NDArray[np.bool_]) -> CollectiveColumns:
        """Return the selected calls."""
        return CollectiveColumns(**{column.name: getattr(self, column.name)[mask] for column in fields(self)})

    @classmethod
    def of_ranks(cls, parts: Sequence[CollectiveColumns]) -> CollectiveColumns:
        """Return the calls of several ranks, one rank after the other."""
        return cls(**{column.name: concat([getattr(part, column.name) for part in parts]) for column in fields(cls)})


def concat(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the columns concatenated; an empty one for no columns."""
    return np.concatenate(columns) if columns else np.empty(0, np.int64)
