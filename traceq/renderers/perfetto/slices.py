"""What goes into a file for Perfetto: tracks and slices, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Argument", "Slices", "Track"]


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the viewer. `order` is its place among its siblings; a `pid` makes it a process, which has no parent."""

    uuid: int
    name: str
    order: int
    parent: int = 0
    pid: int = 0
    is_counter: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """What the viewer shows of a slice beside its name: `values` int64[N], numbers, or indices into `texts` where there
    are any; -1 = absent.
    """

    name: str
    values: NDArray[np.int64]
    texts: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """N slices: `track` int64[N] uuids; `start`, `end` int64[N] ns; `name`, `category` int64[N] into the texts `names`
    and `categories`; `flow` int64[N] joins slices of one number with arrows, 0 = none.
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
