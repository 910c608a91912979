"""A tape of delays: stretches worked out side by side give what one instruction after the other gives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from traceq.facts.stalls.max_plus import FAR, NEVER_OFF, MaxPlusTape, run


def run_sequentially(tape: MaxPlusTape, off: NDArray[np.bool_], read: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cells after the first `read` instructions, computed one instruction at a time."""
    result = np.zeros((len(read), tape.num_cells, len(off)), np.int64)
    for case, switched_off in enumerate(off.tolist()):
        cells = [0] * tape.num_cells
        for index in range(len(tape) + 1):
            result[read == index, :, case] = cells
            if index == len(tape):
                break
            target, switch = int(tape.target[index]), int(tape.switch[index])
            if switch != NEVER_OFF and switched_off[switch]:
                cells[target] -= int(tape.instead[index])
            else:
                from_target, from_source = (
                    cells[target] - int(tape.keep[index]),
                    cells[int(tape.source[index])] - int(tape.lag[index]),
                )
                cells[target] = max(from_target, from_source)
    return result


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
def test_running_stretches_in_parallel_equals_running_instructions_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tape = random_tape(rng, int(rng.integers(1, 120)), int(rng.integers(2, 6)), 4)
    off = rng.random((5, 4)) < 0.4
    read = rng.integers(0, len(tape) + 1, 9)
    assert np.array_equal(run(tape, off, read), run_sequentially(tape, off, read))


def test_an_empty_tape_moves_nothing() -> None:
    nothing = np.empty(0, np.int64)
    tape = MaxPlusTape(2, nothing, nothing, nothing, nothing, nothing, nothing)
    assert not run(tape, np.zeros((1, 0), np.bool_), np.zeros(3, np.int64)).any()
