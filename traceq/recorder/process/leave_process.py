"""End of a process whose program does not know that it ends here: as by Ctrl-C, or at once."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from threading import Thread, current_thread, get_ident, main_thread
from time import sleep

from torch.optim.optimizer import register_optimizer_step_pre_hook

from traceq.recorder.process.rank_messages import append_message

__all__ = ["interrupt_process", "leave_process"]

_MOST_INTERRUPTS = 5
"""A loop that trains on after so many would do so after any number."""


class _Interrupt(KeyboardInterrupt, SystemExit):
    """Ctrl-C to a program that catches it; else the interpreter ends as by `sys.exit(code)`, without a traceback."""


def interrupt_process(code: int, grace_s: float) -> None:
    """Raise KeyboardInterrupt in this thread, so that the handlers and `finally` of the job run as after Ctrl-C.

    Where the job catches it and trains on, the next steps of its optimizers raise it again. If that does not end the
    process, or not within `grace_s` seconds, it is left at once. Returns only if the job handles SIGINT by itself.
    """
    if not grace_s:
        leave_process(code)
    _set_exit_code(code)
    Thread(target=_leave_after, args=(grace_s, code), daemon=True).start()
    if current_thread() is not main_thread():
        if main_thread().is_alive():
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        sys.exit(code)  # ends the thread: no KeyboardInterrupt has ever reached one
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(signal.SIGINT, sys._getframe())
        return
    thread, interrupts = get_ident(), iter(range(_MOST_INTERRUPTS - 1))

    def interrupt_again(*_: object) -> None:
        if get_ident() == thread:
            if next(interrupts, None) is None:
                leave_process(code)
            raise _Interrupt(code)

    register_optimizer_step_pre_hook(interrupt_again)
    raise _Interrupt(code)


def leave_process(code: int) -> None:
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


def _leave_after(grace_s: float, code: int) -> None:
    sleep(grace_s)
    append_message(
        "", f"traceq: process {os.getpid()} has not ended within {grace_s:g} s (--grace): it is ended at once"
    )
    leave_process(code)
