"""A system of delays as a tape of instructions, run for many cases at once.

An instruction is `cell[target] = max(cell[target] - keep, cell[source] - lag)`. That is linear in (max, +): a stretch
of the tape is a matrix, so the matrices of all stretches are computed in parallel and applied one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAR", "NEVER_OFF", "MaxPlusTape", "run"]

FAR = 2**60
"""Lag or keep of an edge that never binds, ns."""

NEVER_OFF = -1
"""Switch of an instruction that is never replaced."""


@dataclass(frozen=True, slots=True, eq=False)
class MaxPlusTape:
    """I instructions on `num_cells` cells with initial value 0.

    `target`, `source` int64[I] cells; `keep`, `lag` int64[I] ns; `switch` int64[I]: while its switch is off, the
    instruction is replaced by `cell[target] -= instead`; NEVER_OFF for most; `instead` int64[I] ns.
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
    """Return int64[P, cells, R] ns: all cells after the first `read` int64[P] instructions.

    `off` bool[R, switches]: the switches that are off in each case.
    """
    tape, read = _merged(tape, read)
    off = np.column_stack([off, np.zeros(len(off), np.bool_)]).T
    length = max(int(np.sqrt(len(tape))), 1)
    stretches = _stretches(tape, length)
    begins = _cells_before(_matrices(stretches, off), len(off.T))
    return _cells_at(stretches, off, begins, read)


def _merged(tape: MaxPlusTape, read: NDArray[np.int64]) -> tuple[MaxPlusTape, NDArray[np.int64]]:
    """Return the tape with neighbours of one target and source merged, except across `read`, and `read` into it."""
    if len(tape) == 0:
        return tape, read
    begins = np.r_[True, (np.diff(tape.target) != 0) | (np.diff(tape.source) != 0)]
    special = (tape.switch != NEVER_OFF) | (tape.keep >= FAR)
    begins |= special | np.r_[False, special[:-1]]
    begins[read[read < len(tape)]] = True
    first = np.flatnonzero(begins)
    keep_sum = np.cumsum(tape.keep % FAR)
    keep_until_next = np.r_[keep_sum[first[1:] - 1], keep_sum[-1]] if len(first) > 1 else keep_sum[-1:]
    later = np.repeat(keep_until_next, np.diff(np.r_[first, len(tape)])) - keep_sum
    merged = MaxPlusTape(
        tape.num_cells,
        tape.target[first],
        tape.source[first],
        np.where(special[first], tape.keep[first], np.add.reduceat(tape.keep, first)),
        np.minimum(np.minimum.reduceat(tape.lag + later, first), FAR),
        tape.switch[first],
        tape.instead[first],
    )
    return merged, np.searchsorted(first, read, "left")


def _stretches(tape: MaxPlusTape, length: int) -> MaxPlusTape:
    """Return the tape with columns int64[stretches, length], padded with instructions that do nothing."""
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


def _step(tape: MaxPlusTape, off: NDArray[np.bool_], index: int, cells: NDArray[np.int64]) -> None:
    """Run instruction `index` of every stretch in place on `cells` int64[stretches, cells, R, ...]."""
    rows = np.arange(len(cells))
    target, source = tape.target[:, index], tape.source[:, index]
    is_off = off[tape.switch[:, index]]
    keep = np.where(is_off, tape.instead[:, index, None], tape.keep[:, index, None])
    lag = np.where(is_off, FAR, tape.lag[:, index, None])
    shape = keep.shape + (1,) * (cells.ndim - 3)
    from_target = cells[rows, target] - keep.reshape(shape)
    from_source = cells[rows, source] - lag.reshape(shape)
    cells[rows, target] = np.maximum(np.maximum(from_target, from_source), -FAR)


def _matrices(tape: MaxPlusTape, off: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64[stretches, cells, R, cells]: the (max, +) matrix of each stretch."""
    num_stretches, length = tape.target.shape
    cells = np.full((num_stretches, tape.num_cells, off.shape[1], tape.num_cells), -FAR)
    all_cells = np.arange(tape.num_cells)
    cells[:, all_cells, :, all_cells] = 0
    for index in range(length):
        _step(tape, off, index, cells)
    return cells


def _cells_before(matrices: NDArray[np.int64], num_cases: int) -> NDArray[np.int64]:
    """Return int64[stretches, cells, R]: the cells before each stretch."""
    before = np.zeros(matrices.shape[:3], np.int64)
    for number in range(1, len(matrices)):
        before[number] = (matrices[number - 1] + before[number - 1].T[None]).max(axis=2)
    return before


def _cells_at(
    tape: MaxPlusTape, off: NDArray[np.bool_], begins: NDArray[np.int64], read: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[P, cells, R]: the cells after the first `read` instructions."""
    length = tape.target.shape[1]
    cells = begins
    result = np.zeros((len(read), *begins.shape[1:]), np.int64)
    stretch, place = (read - 1) // length, (read - 1) % length
    for index in range(length):
        _step(tape, off, index, cells)
        selected = np.flatnonzero((place == index) & (read > 0))
        result[selected] = cells[stretch[selected]]
    return result
