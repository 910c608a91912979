"""End of a process whose program does not know that it ends here: as by Ctrl-C, or at once."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from threading import Thread, current_thread, get_ident, main_thread
from time import sleep
from types import TracebackType

from torch.optim.optimizer import register_optimizer_step_pre_hook

from traceq.recorder.process.progress_counters import append_message
from traceq.recorder.process.world import leave_world

_MOST_INTERRUPTS = 5
"""A loop that trains on after so many would do so after any number."""


class _Interrupt(KeyboardInterrupt, SystemExit):
    """Ctrl-C to a program that catches it; else the interpreter ends as by `sys.exit(code)`, without a traceback."""


class ProcessEnd:
    """End of this process within `grace_s` seconds, once it is asked for; to be made before the job trains."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._is_asked_for = False
        atexit.register(self._leave_group)  # runs behind what the job registers from here on

    def interrupt(self, code: int) -> None:
        """Raise KeyboardInterrupt in this thread, so that the handlers and `finally` of the job run as after Ctrl-C.

        Where the job catches it and trains on, the next steps of its optimizers raise it again. If that does not end
        the process, or not in time, it is left at once. Returns only if the job handles SIGINT by itself.
        """
        if not self._grace_s:
            _leave_process(code)
        self._is_asked_for = True
        _set_exit_code(code)
        Thread(target=self._leave_later, args=(code,), daemon=True).start()
        if current_thread() is not main_thread():
            _interrupt_main_thread(code)
            sys.exit(code)  # ends the thread: no KeyboardInterrupt has ever reached one
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and handler is not signal.default_int_handler:
            handler(signal.SIGINT, sys._getframe())
            return
        thread, interrupts = get_ident(), iter(range(_MOST_INTERRUPTS - 1))

        def interrupt_again(*_: object) -> None:
            if get_ident() == thread:
                if next(interrupts, None) is None:
                    _leave_process(code)
                raise _Interrupt(code)

        register_optimizer_step_pre_hook(interrupt_again)
        raise _Interrupt(code)

    def _leave_later(self, code: int) -> None:
        sleep(self._grace_s)
        within = f"within {self._grace_s:g} s (--grace)"
        append_message("", f"traceq: process {os.getpid()} has not ended {within}: it is ended at once")
        _leave_process(code)

    def _leave_group(self) -> None:
        """Destroy the process group that an interrupted job has left: else its threads may abort the process."""
        if self._is_asked_for:
            leave_world()


def _leave_process(code: int) -> None:
    """Exit at once: output is flushed and data loader workers end, but no `finally` and no final checkpoint runs."""
    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _set_exit_code(code: int) -> None:
    """Let the process exit with this code, whatever a handler of KeyboardInterrupt says: Lightning says 1.

    Launchers would take that for a failure, and kill the other ranks. C calls what is registered in reverse, behind
    Python's own finalization.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for function, value in ((libc._exit, code), (libc.fflush, None)):
            libc.__cxa_atexit(ctypes.cast(function, ctypes.c_void_p), ctypes.c_void_p(value), None)


def _interrupt_main_thread(code: int) -> None:
    """Send Ctrl-C to the main thread, if it still runs; it ends as by `sys.exit(code)` if it does not catch that."""
    before = sys.excepthook

    def exit_quietly(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            raise SystemExit(code)
        before(kind, error, traceback)

    sys.excepthook = exit_quietly
    ident = main_thread().ident
    if main_thread().is_alive() and ident is not None:
        signal.pthread_kill(ident, signal.SIGINT)


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
