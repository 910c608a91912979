"""Python's garbage collector: pauses of it, and the objects that it tracks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["collect_in_turn", "collect_new", "gc_disabled", "gc_frozen", "live_objects"]

_TURNS_OF_NEW = 8
"""Of so many collections one visits all objects, the others what is new; of Python's own, one in a hundred at most."""


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable Python's garbage collector, which visits all objects again and again while their number grows."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Let collections in the block visit only what was made in it: of a whole program they take 0.1 s, and its caches.

    What of the rest becomes garbage meanwhile is collected after the block. A program that has frozen objects itself
    keeps them, and has nothing to gain here.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def collect_in_turn(turn: int) -> None:
    """Collect garbage where Python's collector is disabled, between blocks of steps: in most turns of what is new."""
    gc.collect(1 if turn % _TURNS_OF_NEW else 2)


def collect_new() -> None:
    """Collect garbage among what was made since the last collection."""
    gc.collect(1)


def live_objects() -> list[Any]:
    """Return all objects that Python's garbage collector tracks, also those that the program has frozen.

    `gc.get_objects` leaves out what `gc.freeze` took from the collector: it is returned, listed and frozen again, with
    what is alive by now. Garbage is collected before, as it would be frozen, too.
    """
    if not gc.get_freeze_count():
        return gc.get_objects()
    with gc_disabled():
        gc.collect()
        gc.unfreeze()
        try:
            return gc.get_objects()
        finally:
            gc.freeze()
