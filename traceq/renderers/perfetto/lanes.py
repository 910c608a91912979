"""Lanes for slices that cross: two slices of a track must be disjoint or nested."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["boundaries", "lanes"]


def boundaries(start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (slice, opens) of all 2N beginnings and ends, in the order in which a viewer must read them.

    At one instant: first the ends, inner before outer; then the beginnings, longer before shorter; then empty slices,
    each with its beginning and end.
    """
    num = len(start)
    which, opens = np.tile(np.arange(num), 2), np.repeat([True, False], num)
    begins, ends = start[which], end[which]
    empty = begins == ends
    time = np.where(opens, begins, ends)
    kind = np.where(empty, 2, np.where(opens, 1, 0))
    nesting = np.where(empty, 0, np.where(opens, -ends, -begins))
    row = np.where(opens | empty, which, -which)
    order = np.lexsort((~opens, row, nesting, kind, time))
    return which[order], opens[order]


def lanes(track: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[N], the lane of each slice on its track, from 0: slices of a lane are disjoint or nested.

    Only slices that cross another are moved, each to the first lane where it fits.
    """
    lane = np.zeros(len(track), np.int64)
    order = np.argsort(track, kind="stable")
    cuts = np.flatnonzero(np.diff(track[order])) + 1
    for rows in np.split(order, cuts) if len(order) else ():
        if not _is_nested(start[rows], end[rows]):
            lane[rows] = _first_fit(start[rows], end[rows])
    return lane


def _is_nested(start: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    """Return whether all slices are disjoint or nested: read as brackets, every end closes its own beginning."""
    which, opens = boundaries(start, end)
    depth = np.cumsum(np.where(opens, 1, -1)) + ~opens
    pairs = which[np.argsort(depth, kind="stable")].reshape(-1, 2)
    return bool((pairs[:, 0] == pairs[:, 1]).all())


def _first_fit(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lane of each slice, by a loop, as few tracks need it; slices without crossings fit the first lane."""
    lane = np.zeros(len(start), np.int64)
    open_ends: list[list[int]] = []
    order = np.lexsort((-end, start))
    for index, begins, ends in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        for stack in open_ends:
            while stack and stack[-1] <= begins:
                stack.pop()
        fits = (number for number, stack in enumerate(open_ends) if not stack or ends <= stack[-1])
        number = next(fits, len(open_ends))
        if number == len(open_ends):
            open_ends.append([])
        open_ends[number].append(ends)
        lane[index] = number
    return lane
