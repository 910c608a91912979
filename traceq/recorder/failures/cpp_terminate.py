"""What to do where a C++ exception ends the process: gloo, and NCCL's watchdog, end it without a word of Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["TerminateHandler"]

_SET_TERMINATE = "_ZSt13set_terminatePFvvE"  # std::set_terminate(void (*)())
_Handler = ctypes.CFUNCTYPE(None)


class TerminateHandler:
    """Calls a function on the thread of the exception, then the handler that was there before, which aborts.

    Without GNU's C++ library it does nothing. The other threads of the process still run: they wait, if they do, for
    the collective that failed.
    """

    __slots__ = ("_before", "_handler", "_report", "_set")

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._handler = _Handler(self._call)
        self._before: int | None = None
        self._set: Any = None
        with suppress(OSError, AttributeError):
            self._set = getattr(ctypes.CDLL("libstdc++.so.6"), _SET_TERMINATE)
            self._set.restype, self._set.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
            self._before = self._set(ctypes.cast(self._handler, ctypes.c_void_p))

    def _call(self) -> None:
        with suppress(Exception):
            self._report()
        if self._before:
            _Handler(self._before)()

    def restore(self) -> None:
        """Bring the handler back that was there before."""
        if self._set is not None:
            self._set(self._before)
            self._set = None
