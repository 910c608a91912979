"""Signals that end a recording: the first one raises Stopped, later ones are ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stopped(BaseException):
    """The signal that ended the block."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        super().__init__(number.name)

    @property
    def as_exit(self) -> BaseException:
        """KeyboardInterrupt for SIGINT, else SystemExit with 128 + the signal's number."""
        return KeyboardInterrupt() if self.number == signal.SIGINT else SystemExit(128 + self.number)


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Raise Stopped in the block on the first signal, and ignore signals after it.

    The yielded function ignores signals from then on. Without a signal the previous handlers are restored; a signal
    that was ignored before (nohup) stays ignored.
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
                before.update(dict.fromkeys(before, signal.SIG_IGN))  # the process is about to exit


@contextmanager
def sigterm_deferred() -> Iterator[None]:
    """Delay a SIGTERM until the block ends.

    Launchers send one to the ranks whose peer failed, and these have to write the reason first.
    """
    was_received = False

    def note(*_: object) -> None:
        nonlocal was_received
        was_received = True

    with _handled((signal.SIGTERM,), note):
        yield
    if was_received:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Callable[[int, object], None]) -> Iterator[dict[int, Any]]:
    """Install the handler for signals that are not ignored, and yield the handlers to restore, by signal.

    Does nothing outside of the main thread, the only one that handles signals.
    """
    if current_thread() is not main_thread():
        yield {}
        return
    before = {int(number): signal.getsignal(number) for number in numbers}
    before = {number: previous for number, previous in before.items() if previous not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
