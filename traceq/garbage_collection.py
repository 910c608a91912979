"""Pauses of Python's search for cycles, which visits all objects again and again while their number grows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["gc_disabled"]


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable Python's garbage collector in the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
