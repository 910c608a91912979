"""Contents of a file for Perfetto: tracks, and slices as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen

__all__ = ["Argument", "Slices", "Track"]


@frozen
class Track:
    """A row of the viewer; `order` is its position among siblings, and a `pid` makes it a process, without a parent."""

    uuid: int
    name: str
    order: int
    parent: int = 0
    pid: int = 0
    is_counter: bool = False


@frozen(eq=False)
class Argument:
    """An argument that the viewer shows for each of N slices.

    `values` int64[N] are numbers, or indices into `texts` if there are any; -1 = absent.
    """

    name: str
    values: NDArray[np.int64]
    texts: Sequence[str] | None = None


@frozen(eq=False)
class Slices:
    """N slices, as columns.

    `track` int64[N] are uuids; `start`, `end` int64[N] ns; `name`, `category` int64[N] indices into `names` and
    `categories`; `flow` int64[N] joins slices of the same number with arrows, 0 = none.
    """

    track: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    names: Sequence[str]
    category: NDArray[np.int64]
    categories: Sequence[str]
    flow: NDArray[np.int64]
    arguments: Sequence[Argument] = field(default=())

    def __len__(self) -> int:
        return len(self.track)
