"""Python's garbage collector: blocks without it, and the objects that it tracks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
