"""The walk to the largest batch that fits, without training anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the recorder is a torch program")

from traceq.recorder import next_batch


def walk(capacity: int, first: int, most: int = 4096) -> dict[int, bool]:
    """Every size tried, in order, and whether it fits."""
    fits: dict[int, bool] = {}
    while (size := next_batch(fits, first, most)) is not None:
        assert size not in fits
        fits[size] = size <= capacity
    return fits


def test_it_doubles_until_one_is_refused_and_then_halves_in_between() -> None:
    assert list(walk(50, 16)) == [16, 32, 64, 48, 56, 52]
    assert list(walk(5, 16)) == [16, 8, 4, 6, 5]
    assert list(walk(100, 16, most=64)) == [16, 32, 64]
    assert walk(0, 4) == {4: False, 2: False, 1: False}


@given(st.integers(1, 5000), st.integers(1, 300))
def test_the_largest_is_known_to_an_eighth(capacity: int, first: int) -> None:
    fits = walk(capacity, first)
    largest = max(size for size, does in fits.items() if does)
    refused = min((size for size, does in fits.items() if not does), default=None)
    if refused is None:
        assert largest == 4096
    else:
        assert largest <= capacity < refused <= largest + max(1, largest // 8)
