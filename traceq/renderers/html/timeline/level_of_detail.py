"""Spans too short to be seen, merged into blocks, so that a page of a million events stays small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.renderers.html.timeline.spans import BLOCK, Lane

__all__ = ["finest_ns", "merge_short"]

_WIDEST = 40
"""Largest power of 2 ns that spans are merged below: 18 minutes."""


def merge_short(lane: Lane, finest_ns: int) -> Lane:
    """Return the lane with each run of shorter spans that start within one cell of `finest_ns` as one block.

    Cells are counted from time 0 of the trace. Blocks keep the number of spans and their total duration; a single short
    span stays as it is. A block's `extra` is the sum of what its spans have.
    """
    first = _opens(lane, finest_ns)
    if len(first) == len(lane):
        return lane
    num = np.add.reduceat(lane.num, first)
    is_block = num > lane.num[first]
    extra = lane.extra
    if extra is not None:
        total = np.add.reduceat(np.maximum(extra, 0), first)
        extra = np.where(is_block, total, extra[first])
    return replace(
        lane,
        start=lane.start[first],
        end=np.maximum.reduceat(lane.end, first),
        label=np.where(is_block, BLOCK, lane.label[first]),
        num=num,
        busy=np.add.reduceat(lane.busy, first),
        extra=extra,
    )


def finest_ns(lanes: Sequence[Lane], most: int) -> int:
    """Return the least duration, 0 or a power of 2 ns, below which merging leaves at most `most` spans in all."""
    if sum(map(len, lanes)) <= most:
        return 0
    low, high = 0, _WIDEST  # exponents: too fine, coarse enough
    while high - low > 1:
        middle = (low + high) // 2
        if sum(len(_opens(lane, 1 << middle)) for lane in lanes) <= most:
            high = middle
        else:
            low = middle
    return 1 << high


def _opens(lane: Lane, finest_ns: int) -> NDArray[np.int64]:
    """Return the index of the first span of each block, and of each span that is none."""
    if len(lane) == 0 or finest_ns <= 0:
        return np.arange(len(lane))
    joins = lane.busy < finest_ns
    cell = lane.start // finest_ns
    same = joins[1:] & joins[:-1] & (cell[1:] == cell[:-1])
    return np.flatnonzero(np.r_[True, ~same])
