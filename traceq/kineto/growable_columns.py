"""Columns that grow in place: their pages are moved, never copied, and a page that was never written costs nothing."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GrowingColumns"]

_SKEW = 3 * 64  # columns that start on pages would share the same few lines of the L1 cache
_LARGE = 8 << 20  # from here on pages of 2 MB: to touch those of 4 KB one by one is a tenth of a reading


class GrowingColumns:
    """`room` rows of columns of these types; `views` are their bytes, valid until they grow."""

    def __init__(self, dtypes: Mapping[str, type], room: int) -> None:
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        self.room = room
        self._blocks = [_block(size) for size in self._sizes()]
        self.views = self._views()

    def _sizes(self) -> list[int]:
        return [_SKEW * at + self.room * dtype.itemsize + 1 for at, dtype in enumerate(self._dtypes.values())]

    def _views(self) -> tuple[memoryview, ...]:
        return tuple(memoryview(block)[_SKEW * at :] for at, block in enumerate(self._blocks))

    def grow(self, room: int) -> None:
        """Make room for so many rows."""
        for view in self.views:
            view.release()
        self.room = room
        self._blocks = [_resized(block, size) for block, size in zip(self._blocks, self._sizes(), strict=True)]
        self.views = self._views()

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Some rows, by column; they are the columns' own memory, which cannot grow while they are in use."""
        return {
            name: np.frombuffer(block, dtype, stop, _SKEW * at)[start:]
            for at, ((name, dtype), block) in enumerate(zip(self._dtypes.items(), self._blocks, strict=True))
        }


def _block(size: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _resized(block: mmap.mmap, size: int) -> mmap.mmap:
    try:
        block.resize(size)
    except SystemError:  # no Linux: pages cannot be moved
        larger = _block(size)
        with memoryview(block) as old:
            larger[: len(old)] = old
        return larger
    return block
