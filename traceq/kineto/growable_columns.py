"""Columns that grow in place: pages are moved, never copied, and a page that was never written uses no memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GrowableColumns"]

_SKEW = 3 * 64  # columns that all start on a page boundary would compete for the same few lines of the L1 cache
_LARGE = 8 << 20  # from this size on 2 MB pages: faulting in 4 KB pages takes a tenth of the reading time


class GrowableColumns:
    """Columns of `capacity` rows with these dtypes; `views` are their bytes, valid until they grow."""

    def __init__(self, dtypes: Mapping[str, type], capacity: int) -> None:
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        self.capacity = capacity
        self._blocks = [_block(size) for size in self._sizes()]
        self.views = self._views()

    def _sizes(self) -> list[int]:
        return [_SKEW * index + self.capacity * dtype.itemsize + 1 for index, dtype in enumerate(self._dtypes.values())]

    def _views(self) -> tuple[memoryview, ...]:
        return tuple(memoryview(block)[_SKEW * index :] for index, block in enumerate(self._blocks))

    def grow(self, capacity: int) -> None:
        """Increase the capacity to this many rows."""
        for view in self.views:
            view.release()
        self.capacity = capacity
        self._blocks = [_resized(block, size) for block, size in zip(self._blocks, self._sizes(), strict=True)]
        self.views = self._views()

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return rows by column name: views of the columns' memory, which cannot grow while they are in use."""
        return {
            name: np.frombuffer(block, dtype, stop, _SKEW * index)[start:]
            for index, ((name, dtype), block) in enumerate(zip(self._dtypes.items(), self._blocks, strict=True))
        }


def _block(size: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _resized(block: mmap.mmap, size: int) -> mmap.mmap:
    try:
        block.resize(size)
    except SystemError:  # not Linux: pages cannot be moved
        larger = _block(size)
        with memoryview(block) as old:
            larger[: len(old)] = old
        return larger
    return block
