"""Pauses of Python's collector leave it as they found it, also where the program has frozen objects itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from traceq.garbage_collection import collect_in_turn, gc_disabled, gc_frozen


class Cycle:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    """Undo what other tests have frozen."""
    had_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.unfreeze()
    if had_frozen:
        gc.freeze()


@pytest.mark.slow
def test_only_garbage_made_in_the_block_is_collected_there() -> None:
    before = Cycle()
    reference = weakref.ref(before)
    with gc_frozen():
        del before
        new = weakref.ref(Cycle())
        gc.collect()
        assert new() is None
        assert reference() is not None
    gc.collect()
    assert reference() is None
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_what_the_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with gc_frozen():
        assert gc.get_freeze_count() == count
    assert gc.get_freeze_count() == count


@pytest.mark.slow
def test_in_turn_new_garbage_goes_at_once_and_older_within_eight_turns() -> None:
    with gc_disabled():
        older = Cycle()
        gc.collect()
        reference = weakref.ref(older)
        del older
        for turn in range(1, 9):
            new = weakref.ref(Cycle())
            collect_in_turn(turn)
            assert new() is None
            assert (reference() is None) == (turn == 8)
