"""The end of a process, also of one that multiprocessing started."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.util import Finalize

__all__ = ["at_process_exit"]

_WITH_OTHERS = 0
"""Priority from which multiprocessing calls what ends with a process before it waits for that process's children."""


def at_process_exit(note: Callable[[BaseException | None], None]) -> None:
    """Call `note` when this process ends, with the exception that ends it; None for no exception, or one not seen here.

    A process that multiprocessing forks calls nothing of atexit, and what it raises is caught past `sys.excepthook`;
    `torch.multiprocessing.spawn` exits in the handler of that exception. `note` may be called twice.
    """
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:  # not in a child that the loop forks
            note(_raised())

    atexit.register(end)
    if parent_process() is not None:
        Finalize(None, end, exitpriority=_WITH_OTHERS)


def _raised() -> BaseException | None:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return error.__context__ if error.code else None
    return error
