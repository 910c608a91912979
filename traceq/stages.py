"""Stages of work that may take long, for whoever watches them: what is being done, and how far it is.

Nothing is counted for that: a watcher in another thread asks a stage, ten times a second, how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from traceq.frozen import frozen

T = TypeVar("T")


@frozen(eq=False)
class Stage:
    """What is being done, `done()` of `total` of it; a total of 0 is unknown. `are_bytes`: what is counted."""

    what: str
    done: Callable[[], int]
    total: int
    are_bytes: bool = False


class Watched:
    """What is being done in a block of `watched`: its innermost stage, None between stages."""

    def __init__(self) -> None:
        self.stage: Stage | None = None


_WATCHED: ContextVar[Watched | None] = ContextVar("watched", default=None)


@contextmanager
def watched() -> Iterator[Watched]:
    """Have the stages of this block noted, and yield where."""
    work = Watched()
    token = _WATCHED.set(work)
    try:
        yield work
    finally:
        _WATCHED.reset(token)


@contextmanager
def stage(what: str, done: Callable[[], int], total: int, *, are_bytes: bool = False) -> Iterator[None]:
    """Be at a stage in this block. `done` may be called from another thread, also after the block."""
    work = _WATCHED.get()
    if work is None:
        yield
        return
    before, work.stage = work.stage, Stage(what, done, total, are_bytes)
    try:
        yield
    finally:
        work.stage = before


def counted(what: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items, each of which is a part of a stage."""
    number = 0
    with stage(what, lambda: number, len(items)):
        for number, item in enumerate(items):  # noqa: B007 - the stage asks for it
            yield item
