"""A tape of delays: stretches worked out side by side give what one instruction after the other gives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from traceq.facts.stalls.max_plus import FAR, NEVER_OFF, MaxPlusTape, run


def one_by_one(tape: MaxPlusTape, off: NDArray[np.bool_], read: NDArray[np.int64]) -> NDArray[np.int64]:
    """The slow way."""
    found = np.zeros((len(read), tape.num_cells, len(off)), np.int64)
    for case, switched_off in enumerate(off.tolist()):
        cells = [0] * tape.num_cells
        for at in range(len(tape) + 1):
            found[read == at, :, case] = cells
            if at == len(tape):
                break
            target, switch = int(tape.target[at]), int(tape.switch[at])
            if switch != NEVER_OFF and switched_off[switch]:
                cells[target] -= int(tape.instead[at])
            else:
                own, other = cells[target] - int(tape.keep[at]), cells[int(tape.source[at])] - int(tape.lag[at])
                cells[target] = max(own, other)
    return found


def random_tape(rng: np.random.Generator, size: int, num_cells: int, num_switches: int) -> MaxPlusTape:
    target = np.repeat(rng.integers(0, num_cells, size), rng.integers(1, 5, size))
    size = len(target)
    source = (target + rng.integers(1, num_cells, size)) % num_cells
    keep, lag = rng.integers(0, 50, size), rng.integers(0, 50, size)
    lag[rng.random(size) < 0.3] = FAR
    keep[(rng.random(size) < 0.1) & (lag < FAR)] = FAR
    switch = np.where(rng.random(size) < 0.2, rng.integers(0, num_switches, size), NEVER_OFF)
    return MaxPlusTape(num_cells, target, source, keep, lag, switch, rng.integers(0, 90, size))


@pytest.mark.parametrize("seed", range(30))
def test_stretches_side_by_side_give_what_one_instruction_after_the_other_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tape = random_tape(rng, int(rng.integers(1, 120)), int(rng.integers(2, 6)), 4)
    off = rng.random((5, 4)) < 0.4
    read = rng.integers(0, len(tape) + 1, 9)
    assert np.array_equal(run(tape, off, read), one_by_one(tape, off, read))


def test_an_empty_tape_moves_nothing() -> None:
    nothing = np.empty(0, np.int64)
    tape = MaxPlusTape(2, nothing, nothing, nothing, nothing, nothing, nothing)
    assert not run(tape, np.zeros((1, 0), np.bool_), np.zeros(3, np.int64)).any()
