"""The exception that ended a rank, written to a small file before any of its peers can notice.

Also where a C++ exception ends the process: gloo, and NCCL's watchdog, end it without a word of Python.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from traceq.locations import Most, read_whole
from traceq.recorder.process.signals import Stopped
from traceq.runs.run_folder import atomic_write

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


_ARM_NOTE = "in a step of arm "
_PACKAGE = f"{Path(__file__).parents[2]}/"
_SCREEN = 2000
"""Characters of an exception's text that are kept: a screen; the log has all of it."""
_NUM_RESERVED = 4
_reserved: list[int] = []


class RankError(msgspec.Struct, frozen=True):
    """An exception of a rank: its text, when it was caught (ns since the epoch), and in a step of which arm or ""."""

    text: str
    at_ns: int
    arm: str = ""


class SilentExit(Exception):
    """A rank that ended without reporting an error, as its peers write it."""

    def __str__(self) -> str:
        return "exited without reporting an error (killed, or exited early)"


def reserve_descriptors() -> None:
    """Hold file descriptors for the report of an error, which may be that there are no more."""
    while len(_reserved) < _NUM_RESERVED:
        _reserved.append(os.open(os.devnull, os.O_WRONLY))


def write_error(folder: str, rank: int, error: BaseException) -> None:
    """Write the exception into the folder; disk errors are ignored, as the rank's log holds the exception too."""
    path = _path(folder, rank)
    while _reserved:
        os.close(_reserved.pop())
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as part:
            part.write_bytes(msgspec.json.encode(RankError(error_text(error), time.time_ns(), noted_arm(error))))


def read_error(folder: str, rank: int) -> RankError | None:
    """Return the exception that the rank wrote; None if it wrote none."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(read_whole(_path(folder, rank), Most.STATUS), type=RankError)
    return None


def note_arm(error: BaseException, arm: str) -> None:
    """Add a note to an exception: it was raised in a step of this arm."""
    error.add_note(f"{_ARM_NOTE}{arm}")


def noted_arm(error: BaseException) -> str:
    """Return the arm in a step of which an exception was raised; "" if none was noted."""
    notes: list[str] = getattr(error, "__notes__", [])
    return next((note.removeprefix(_ARM_NOTE) for note in notes if note.startswith(_ARM_NOTE)), "")


def text_in_arm(text: str, arm: str) -> str:
    """Return `OutOfMemoryError: ... (in a step of arm value=1)`; the text alone without an arm."""
    return f"{text} ({_ARM_NOTE}{arm})" if arm else text


def error_text(error: BaseException) -> str:
    """Return `ValueError: its message`, cut to a screen; `ended by SIGTERM` for a signal."""
    if isinstance(error, Stopped):
        return f"ended by {error.number.name}"
    if isinstance(error, SilentExit):
        return str(error)
    text = f"{type(error).__name__}: {error}".rstrip(": \n")
    if len(text) <= _SCREEN:
        return text
    return f"{text[: _SCREEN // 2]} [... {len(text):,} characters ...] {text[-_SCREEN // 2 :]}"


def _path(folder: str, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.json"


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the same traceback without frames of traceq; with all of them if there are no others."""
    entries: list[TracebackType] = []
    entry = traceback
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept or traceback
