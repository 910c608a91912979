"""A rank that another process of its host watches: its counters in a file, and its stack on request."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from traceq.locations import Most, read_whole
from traceq.recorder.process.process_state import is_alive
from traceq.recorder.process.progress_counters import ProgressCounters, create_counters, read_counters

__all__ = ["SeenRank", "WatchedRank", "read_stacks", "seen_ranks"]

_STACK_SIGNAL = getattr(signal, "SIGURG", None)
"""Ignored by a process that does not handle it; no training job is known to."""
_STACK_HEADER = "(most recent call first):\n"  # of faulthandler
_STACKS = ".stacks"
_STACKS_WITHIN_S = 0.5


class WatchedRank:
    """The rank in this process, watched through a folder; `counters` are in a file there, if the folder exists.

    faulthandler writes the main thread's stack on a signal, also while a library holds Python's lock.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._path = Path(folder) / f"{rank}.{os.getpid()}"
        self._stacks: IO[str] | None = None
        self.counters = ProgressCounters("", 0)
        if folder and Path(folder).is_dir():
            with suppress(OSError):  # a full disk: the rank is not watched
                self._register()
                part = self._path.with_suffix(f".{os.getpid()}.part")
                create_counters(part, 1)
                self.counters = ProgressCounters(str(part), 0)
                part.rename(self._path)

    def _register(self) -> None:
        if _STACK_SIGNAL is not None and signal.getsignal(_STACK_SIGNAL) == signal.SIG_DFL:
            self._stacks = open(f"{self._path}{_STACKS}", "w", encoding="utf-8")  # noqa: SIM115 (closed by close())
            faulthandler.register(_STACK_SIGNAL, self._stacks, all_threads=False)

    def close(self) -> None:
        """Be watched no longer."""
        if self._stacks is not None:
            assert _STACK_SIGNAL is not None
            if signal.getsignal(_STACK_SIGNAL) == signal.SIG_DFL:  # else the job handles it since
                faulthandler.unregister(_STACK_SIGNAL)
            self._stacks.close()
            self._stacks = None
        for path in (self._path, Path(f"{self._path}{_STACKS}")):
            with suppress(OSError):
                path.unlink()


@dataclass(frozen=True, slots=True)
class SeenRank:
    """A rank as its watcher sees it: steps ended and phases begun so far, in `num_events`."""

    path: Path
    rank: int
    pid: int
    num_events: int


def seen_ranks(folder: Path) -> list[SeenRank]:
    """Return the ranks that are watched through this folder, by rank.

    None if all have ended; a process that has ended counts if no other took over its rank.
    """
    ranks = []
    for path in folder.glob("*"):
        rank, _, pid = path.name.partition(".")
        if pid.isdecimal():
            with suppress(OSError):
                (progress,) = read_counters(path)
                ranks.append(SeenRank(path, int(rank), int(pid), progress.steps_ended + progress.phases_entered))
    alive = {seen.rank for seen in ranks if is_alive(seen.pid)}
    ranks = [seen for seen in ranks if alive and (seen.rank not in alive or is_alive(seen.pid))]
    return sorted(ranks, key=lambda seen: (seen.rank, seen.pid))


def read_stacks(ranks: Sequence[SeenRank]) -> list[str]:
    """Return the stack of the main thread of each rank, its innermost frame first; "" for one that does not answer."""
    files = [Path(f"{seen.path}{_STACKS}") for seen in ranks]
    sizes = [_size(file) for file in files]
    for seen, size in zip(ranks, sizes, strict=True):
        if size >= 0:
            _request_stack(seen.pid)
    time.sleep(_STACKS_WITHIN_S)
    texts = (_text_from(file, size) for file, size in zip(files, sizes, strict=True))
    return [text.rpartition(_STACK_HEADER)[2] for text in texts]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _text_from(file: Path, size: int) -> str:
    try:
        return read_whole(file, Most.STATUS)[size:].decode(errors="replace") if size >= 0 else ""
    except OSError:
        return ""


def _request_stack(pid: int) -> None:
    """Send the signal to the main thread, where the system can: any thread might take it, and print its own stack."""
    assert _STACK_SIGNAL is not None
    try:
        ctypes.CDLL(None).tgkill(pid, pid, _STACK_SIGNAL)
    except AttributeError:  # not Linux, or a C library of before 2019
        with suppress(OSError):
            os.kill(pid, _STACK_SIGNAL)
