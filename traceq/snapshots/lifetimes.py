"""Lifetimes of allocations, from the actions of an allocator and the blocks that are in use at the end.

An allocation is alive from its `alloc` until its memory can be used again (`free_completed`). What was in use before
the first action follows backwards: from frees of addresses that the history did not allocate, and from blocks in use at
the end to which no action belongs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.model import Action, MemorySnapshot

BEFORE = -1
"""Index of the action after which something is alive that was allocated before the history began."""


@frozen(eq=False)
class Lifetimes:
    """L allocations of one device, each column [L], in a history of `num_actions`.

    One is alive after the actions `start` to `end` - 1 (int64); `end` is `num_actions` where no action ends it. `size`
    int64 bytes as asked for; `stack`, `category` int64 as in the snapshot. `at_end` int64[K]: the lifetime of each
    block in use at the end. `num_contradictions` counts actions that the others rule out, such as a second free;
    `lost_bytes` are in use according to the history, and in no block.
    """

    num_actions: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    size: NDArray[np.int64]
    stack: NDArray[np.int64]
    category: NDArray[np.int64]
    at_end: NDArray[np.int64]
    num_contradictions: int
    lost_bytes: int

    def levels(self) -> NDArray[np.int64]:
        """Return the bytes in use before the first action, and after each: int64[num_actions + 1]."""
        change = np.zeros(self.num_actions + 2, np.int64)
        np.add.at(change, np.minimum(self.start, self.num_actions) + 1, self.size)
        np.subtract.at(change, self.end + 1, self.size)
        return np.cumsum(change)[: self.num_actions + 1]

    def alive_after(self, action: int) -> NDArray[np.int64]:
        """Return which are alive after an action, BEFORE for before the first: indices int64[M]."""
        return np.flatnonzero((self.start <= action) & (action < self.end))


def lifetimes(snapshot: MemorySnapshot) -> Lifetimes:
    """Return the lifetimes of all allocations that the history or a block shows."""
    history, blocks = snapshot.history, snapshot.blocks
    num, rows, is_alloc = len(history), *_by_address(snapshot)
    address = history.address[rows]
    is_same_next = np.append(address[1:] == address[:-1], False)[: len(rows)]
    is_same_before = np.append(False, is_same_next[:-1])[: len(rows)]
    before, after = np.roll(rows, 1), np.roll(rows, -1)

    allocs = np.flatnonzero(is_alloc)
    alloc_end = np.where(is_same_next, after, num)[allocs]
    frees = np.flatnonzero(~is_alloc & ~(is_same_before & np.roll(is_alloc, 1)))
    free_start = np.where(is_same_before, before, BEFORE)[frees]
    start = np.concatenate([rows[allocs], free_start])
    end = np.concatenate([alloc_end, rows[frees]])
    action = np.concatenate([rows[allocs], rows[frees]])

    open_ones, in_use = np.flatnonzero(end == num), blocks.requested[blocks.is_active]
    lifetime = _matched(blocks.address[blocks.is_active], history.address[action[open_ones]], open_ones)
    unmatched = np.flatnonzero(blocks.is_active)[lifetime < 0]
    is_in_history = np.isin(blocks.address[unmatched], address)
    lifetime[lifetime < 0] = len(start) + np.arange(len(unmatched))
    is_lost = np.isin(open_ones, lifetime, invert=True)
    is_double = is_alloc & is_same_next & np.roll(is_alloc, -1)
    size = np.concatenate([history.size[action], blocks.requested[unmatched]])
    contradictions = (is_double, free_start != BEFORE, is_in_history, is_lost, size[lifetime] != in_use)
    return Lifetimes(
        num,
        start=np.concatenate([start, np.where(is_in_history, num, BEFORE)]),
        end=np.concatenate([end, np.full(len(unmatched), num)]),
        size=size,
        stack=np.concatenate([history.stack[action], blocks.stack[unmatched]]),
        category=np.concatenate([history.category[action], blocks.category[unmatched]]),
        at_end=lifetime,
        num_contradictions=sum(int(each.sum()) for each in contradictions),
        lost_bytes=int(history.size[action[open_ones[is_lost]]].sum()),
    )


def reserved_levels(snapshot: MemorySnapshot) -> NDArray[np.int64]:
    """Return the bytes in segments before the first action, and after each, backwards from those at the end."""
    history = snapshot.history
    grows = np.isin(history.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    shrinks = np.isin(history.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    change = np.where(grows, history.size, 0) - np.where(shrinks, history.size, 0)
    return int(snapshot.segments.size.sum()) - np.append(np.cumsum(change[::-1])[::-1], 0)


def _by_address(snapshot: MemorySnapshot) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (actions that allocate or end an allocation, by address and then by time; whether they allocate).

    Where no `free_completed` was recorded (`skip_actions`), a request ends it, unless its block is still in use at the
    end. Without `alloc` there is nothing.
    """
    history, blocks = snapshot.history, snapshot.blocks
    is_alloc = history.action == Action.ALLOC
    is_end = history.action == Action.FREE_COMPLETED
    has_ends = bool(is_end.any())
    if not has_ends:
        is_end = history.action == Action.FREE_REQUESTED
    rows = np.flatnonzero((is_alloc | is_end) & is_alloc.any())
    rows = rows[np.argsort(history.address[rows], kind="stable")]
    if not has_ends:
        address = history.address[rows]
        is_last = np.append(address[1:] != address[:-1], True)[: len(rows)]
        is_pending = is_last & np.isin(address, blocks.address[blocks.is_active]) & ~is_alloc[rows]
        rows = rows[~is_pending]
    return rows, is_alloc[rows]


def _matched(wanted: NDArray[np.int64], address: NDArray[np.int64], lifetime: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lifetime at each wanted address, -1 without one or where another block has it already."""
    if len(address) == 0:
        return np.full(len(wanted), -1)
    order = np.argsort(address)
    place = np.minimum(np.searchsorted(address[order], wanted), len(order) - 1)
    first = np.zeros(len(wanted), np.bool_)
    first[np.unique(wanted, return_index=True)[1]] = True
    is_match = (address[order][place] == wanted) & first
    return np.where(is_match, lifetime[order[place]], -1)
