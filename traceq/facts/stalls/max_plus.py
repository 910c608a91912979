"""A system of delays as a tape of instructions, run for many cases at once.

An instruction is `cell[target] = max(cell[target] - keep, cell[source] - lag)`. That is linear in (max, +): what a
stretch of the tape does is a matrix, so stretches are worked out side by side, and joined one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAR", "NEVER_OFF", "MaxPlusTape", "run"]

FAR = 2**60
"""ns: a lag or keep of what does not count."""

NEVER_OFF = -1


@dataclass(frozen=True, slots=True, eq=False)
class MaxPlusTape:
    """I instructions on `num_cells` cells that begin at 0.

    `target`, `source`, `keep`, `lag` int64[I]; `switch` int64[I]: the instruction is replaced by
    `cell[target] -= instead` where its switch is off, NEVER_OFF for most; `instead` int64[I] ns.
    """

    num_cells: int
    target: NDArray[np.int64]
    source: NDArray[np.int64]
    keep: NDArray[np.int64]
    lag: NDArray[np.int64]
    switch: NDArray[np.int64]
    instead: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.target)


def run(tape: MaxPlusTape, off: NDArray[np.bool_], read: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[P, cells, R] ns: all cells after the first `read` int64[P] instructions.

    `off` bool[R, switches] says for each case which switches are off.
    """
    tape, read = _joined(tape, read)
    off = np.column_stack([off, np.zeros(len(off), np.bool_)]).T
    length = max(int(np.sqrt(len(tape))), 1)
    stretches = _side_by_side(tape, length)
    begins = _beginnings(_matrices(stretches, off), len(off.T))
    return _replayed(stretches, off, begins, read)


def _joined(tape: MaxPlusTape, read: NDArray[np.int64]) -> tuple[MaxPlusTape, NDArray[np.int64]]:
    """The same with neighbours of one target and source made one, except across a place that is read."""
    if len(tape) == 0:
        return tape, read
    begins = np.r_[True, (np.diff(tape.target) != 0) | (np.diff(tape.source) != 0)]
    special = (tape.switch != NEVER_OFF) | (tape.keep >= FAR)
    begins |= special | np.r_[False, special[:-1]]
    begins[read[read < len(tape)]] = True
    first = np.flatnonzero(begins)
    kept = np.cumsum(tape.keep % FAR)
    over = np.r_[kept[first[1:] - 1], kept[-1]] if len(first) > 1 else kept[-1:]
    later = np.repeat(over, np.diff(np.r_[first, len(tape)])) - kept
    joined = MaxPlusTape(
        tape.num_cells,
        tape.target[first],
        tape.source[first],
        np.where(special[first], tape.keep[first], np.add.reduceat(tape.keep, first)),
        np.minimum(np.minimum.reduceat(tape.lag + later, first), FAR),
        tape.switch[first],
        tape.instead[first],
    )
    return joined, np.searchsorted(first, read, "left")


def _side_by_side(tape: MaxPlusTape, length: int) -> MaxPlusTape:
    """Every column as int64[stretches, length], filled up with instructions that do nothing."""
    missing = -len(tape) % length if len(tape) else length

    def folded(column: NDArray[np.int64], nothing: int) -> NDArray[np.int64]:
        filled: NDArray[np.int64] = np.r_[column, np.full(missing, nothing)].reshape(-1, length)
        return filled

    return MaxPlusTape(
        tape.num_cells,
        folded(tape.target, 0),
        folded(tape.source, 0),
        folded(tape.keep, 0),
        folded(tape.lag, FAR),
        folded(tape.switch, NEVER_OFF),
        folded(tape.instead, 0),
    )


def _step(tape: MaxPlusTape, off: NDArray[np.bool_], at: int, cells: NDArray[np.int64]) -> None:
    """Carry out the instruction `at` of every stretch, on `cells` int64[stretches, cells, R, ...]."""
    rows = np.arange(len(cells))
    target, source = tape.target[:, at], tape.source[:, at]
    is_off = off[tape.switch[:, at]]
    keep = np.where(is_off, tape.instead[:, at, None], tape.keep[:, at, None])
    lag = np.where(is_off, FAR, tape.lag[:, at, None])
    shape = keep.shape + (1,) * (cells.ndim - 3)
    own = cells[rows, target] - keep.reshape(shape)
    other = cells[rows, source] - lag.reshape(shape)
    cells[rows, target] = np.maximum(np.maximum(own, other), -FAR)


def _matrices(tape: MaxPlusTape, off: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64[stretches, cells, R, cells]: what each stretch makes of the cells before it."""
    num_stretches, length = tape.target.shape
    cells = np.full((num_stretches, tape.num_cells, off.shape[1], tape.num_cells), -FAR)
    every = np.arange(tape.num_cells)
    cells[:, every, :, every] = 0
    for at in range(length):
        _step(tape, off, at, cells)
    return cells


def _beginnings(matrices: NDArray[np.int64], num_cases: int) -> NDArray[np.int64]:
    """int64[stretches, cells, R]: the cells before each stretch."""
    before = np.zeros(matrices.shape[:3], np.int64)
    for number in range(1, len(matrices)):
        before[number] = (matrices[number - 1] + before[number - 1].T[None]).max(axis=2)
    return before


def _replayed(
    tape: MaxPlusTape, off: NDArray[np.bool_], begins: NDArray[np.int64], read: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The cells at each place that is read."""
    length = tape.target.shape[1]
    cells = begins
    found = np.zeros((len(read), *begins.shape[1:]), np.int64)
    stretch, place = (read - 1) // length, (read - 1) % length
    for at in range(length):
        _step(tape, off, at, cells)
        mine = np.flatnonzero((place == at) & (read > 0))
        found[mine] = cells[stretch[mine]]
    return found
