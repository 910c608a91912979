"""The exception that ended a rank, written to a small file before any of its peers can notice, and the root cause.

Written also where a C++ exception ends the process: gloo, and NCCL's watchdog, end it without a word of Python. When a
rank dies its peers fail too, often with longer messages: of all failures one is the root cause.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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


ABORTED = "aborted by a C++ exception of a library"
"""Message of a rank that gloo or NCCL ended: it received what its peers sent for another collective, or lost them."""

_PEER_ERROR = re.compile(
    rf"{re.escape(ABORTED)}|"
    r"connection (closed|reset|refused)|connection was (closed|reset)|broken pipe|timed out waiting|watchdog|"
    r"collective operation timeout|socket timeout|remote process exited|ncclRemoteError|ncclSystemError|"
    r"DistBackendError|DistNetworkError|DistStoreError|no response from peer|recvbytes|sendbytes|"
    r"connectFullMesh|read from .{1,200} failed|timed out after \d+ ?(ms|seconds)|^ended by SIG\w+$",
    re.IGNORECASE,
)
_OWN_ERROR = re.compile(r"ncclInvalid(Usage|Argument)|Duplicate GPU detected|Too many open files")
"""Errors of the rank itself, also in the words of a library that connects to peers."""
_TIMEOUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"out of ?memory|MemoryError|can(no|')t allocate memory|bad_alloc|ALLOC_FAILED", re.IGNORECASE
)
_FRAME = re.compile(r"^\s+File ")
_SKIP = "Skip: "
_SIGNAL_NAMES = {int(number): number.name for number in signal.Signals}
_AMBIGUOUS_EXITS = {1, -signal.SIGABRT}
"""Exit codes after an error of the rank itself, or in a library that lost a peer: only the log tells which."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank ended: `exit_code` < 0 is a signal, None means that it ran until the launcher ended it.

    `message` is the exception that it wrote, if any, at `at_ns` (ns since the epoch), in a step of `arm`.
    """

    rank: int
    exit_code: int | None
    message: str = ""
    log_tail: str = ""
    at_ns: int = 0
    arm: str = ""

    @property
    def is_secondary(self) -> bool:
        """True if a peer or the launcher caused it."""
        if self.message:
            return is_peer_error(self.message)
        if self.exit_code in _AMBIGUOUS_EXITS:
            return is_peer_error(self.log_tail)
        return self.exit_code is None

    @property
    def text(self) -> str:
        """How it ended: what it raised, else its exit code or signal."""
        if raised := raised_line(self.message):
            return raised
        if self.exit_code is None:
            return "stopped responding; the other ranks waited for it until they gave up"
        if self.exit_code < 0:
            return f"killed by {_SIGNAL_NAMES.get(-self.exit_code, f'signal {-self.exit_code}')}"
        return f"exited with code {self.exit_code}" + ("" if self.exit_code else " before the recording was complete")

    @property
    def fault(self) -> str:
        """The rank and why, with the arm, as the manifest has it."""
        return f"rank {self.rank}: {text_in_arm(self.text, self.arm)}"

    @property
    def arm_status(self) -> tuple[str, str]:
        """Status and fault of the arm, if only the arm failed and not the recording; else two empty texts."""
        message = self.message or self.log_tail
        if message.startswith(_SKIP):
            return "skipped", message.removeprefix(_SKIP)
        line = out_of_memory_line(message)
        return ("out of memory", f"rank {self.rank}: {line}") if line else ("", "")


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """Why ranks did not complete: `fault` goes into the manifest, `text` to the user.

    `arm_status` and `arm` are those of the root cause.
    """

    fault: str
    text: str
    arm_status: tuple[str, str] = ("", "")
    arm: str = ""


def raised_line(message: str) -> str:
    """Return the first line of what was raised, below the last traceback of another process; "" without words.

    A line that ends in a colon is told with the next one. Later lines are advice, such as where to read on.
    """
    lines = message.splitlines()
    below = max((number + 1 for number, line in enumerate(lines) if _FRAME.match(line)), default=0)
    while below and below < len(lines) and lines[below].startswith(" "):  # its line of code, and marks below that
        below += 1
    words = [line.strip() for line in lines[below:] if re.search(r"\w", line)]
    return " ".join(words[: 2 if words and words[0].endswith(":") else 1])


def out_of_memory_line(message: str) -> str:
    """Return the line of an exception's message that says that memory ran out; "" if none does."""
    return next((line.strip() for line in message.splitlines() if _OUT_OF_MEMORY.search(line)), "")


def is_peer_error(text: str) -> bool:
    """Return True if the message is that of a rank that lost its peers or timed out waiting for them."""
    return bool(_PEER_ERROR.search(text)) and not _OWN_ERROR.search(text)


def find_cause(failures: Sequence[RankFailure], phases_entered: Mapping[int, int]) -> RankFailure:
    """Return the rank that failed by itself; if all ranks waited, the one that the others waited for.

    Of several ranks that failed by themselves, one without a message comes first (it cannot have waited for another),
    then the earliest message. `phases_entered`: phases entered by each rank; in a hang the rank with the fewest is
    late.
    """
    primary = [failure for failure in failures if not failure.is_secondary]
    return min(primary, key=_precedence) if primary else _late_rank(failures, phases_entered)


def _precedence(failure: RankFailure) -> tuple[int, int]:
    if failure.message:
        return 1, failure.at_ns
    return (2 if failure.exit_code in _AMBIGUOUS_EXITS else 0), 0


def _late_rank(failures: Sequence[RankFailure], phases_entered: Mapping[int, int]) -> RankFailure:
    """Return the rank that the others waited for, if every rank waited or stopped responding."""
    silent = [failure for failure in failures if failure.exit_code is None and not failure.message]
    if not silent and not any(_TIMEOUT.search(failure.message) for failure in failures):
        return min(failures, key=lambda failure: failure.at_ns)  # lost connections: the earliest report is the cause
    return min(silent or failures, key=lambda failure: (phases_entered.get(failure.rank, 0), failure.at_ns))
