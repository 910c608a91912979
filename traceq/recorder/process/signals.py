"""Signals that end a recording from outside: the first one stops it, those that follow find nothing left to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

__all__ = ["Stopped", "stoppable", "undisturbed"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stopped(BaseException):
    """The signal that ended the block."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        super().__init__(number.name)

    @property
    def as_exit(self) -> BaseException:
        """What the signal does to a program that knows nothing of it."""
        return KeyboardInterrupt() if self.number == signal.SIGINT else SystemExit(128 + self.number)


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """In the block the first signal raises Stopped. After that, or what it yields was called, signals do nothing.

    Where none came there are the handlers from before; a signal that was ignored (nohup) stays so.
    """
    stopped = False

    def stop(number: int, _: object) -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            raise Stopped(signal.Signals(number))

    def ignore() -> None:
        nonlocal stopped
        stopped = True

    with _handled(_SIGNALS, stop) as before:
        try:
            yield ignore
        finally:
            if stopped:
                before.update(dict.fromkeys(before, signal.SIG_IGN))  # the process only ends


@contextmanager
def undisturbed() -> Iterator[None]:
    """In the block a SIGTERM has to wait: a launcher sends it to ranks whose peer has failed, and they have to tell."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    with _handled((signal.SIGTERM,), note):
        yield
    if came:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Callable[[int, object], None]) -> Iterator[dict[int, Any]]:
    """The handler, for signals that are not ignored; then those it yields. Only the main thread is given signals."""
    if current_thread() is not main_thread():
        yield {}
        return
    before = {int(number): signal.getsignal(number) for number in numbers}
    before = {number: found for number, found in before.items() if found not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, found in before.items():
            signal.signal(number, found)
