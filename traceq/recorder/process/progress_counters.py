"""What ranks tell other processes: progress in a shared file, a stack on request, and messages of rank 0.

Counters are written in 0.1 us, and read by the launcher or by the process that watches the ranks of a host. Messages
are lines in a file that the launcher shows, else on stderr.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from traceq.locations import Most, open_binary, read_whole
from traceq.recorder.process.child_processes import is_alive, signal_main_thread

_STACK_SIGNAL = getattr(signal, "SIGURG", None)
"""Ignored by a process that does not handle it; no training job is known to."""
STACK_HEADER = "(most recent call first):\n"  # of faulthandler
_STACKS = ".stacks"
STACK_WITHIN_S = 0.5


class WatchedRank:
    """The rank in this process, watched through a folder; `counters` are in a file there, if the folder exists.

    faulthandler writes the main thread's stack on a signal, also while a library holds Python's lock.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._path = Path(folder) / f"{rank}.{os.getpid()}"
        self._stacks: IO[str] | None = None
        self.counters = ProgressCounters()
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


PHASES_ENTERED = 2
"""The cell that `count_phase` counts in."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of one rank as read by the launcher. `finished` is 1 once all of its results are on disk."""

    steps_ended: int
    steps_planned: int
    phases_entered: int
    finished: int


_FIELDS = len(fields(Progress))


class ProgressCounters:
    """Counters of one rank as it writes them; without a file only the rank itself sees them.

    `cells`: the fields of `Progress`, in order.
    """

    __slots__ = ("cells",)

    def __init__(self, path: str = "", rank: int = 0) -> None:
        if path:
            with Path(path).open("r+b") as file:
                cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
            self.cells = cells[rank * _FIELDS : (rank + 1) * _FIELDS]
        else:
            self.cells = memoryview(bytearray(8 * _FIELDS)).cast("q")

    @property
    def text(self) -> str:
        """Progress as `40 of 111 steps`; more than planned have ended where irregular ones made others run again."""
        if self.num_ended > self.num_planned:
            return f"{self.num_ended:,} steps, not {self.num_planned:,}, as those beside irregular steps run again"
        return f"{self.num_ended:,} of {self.num_planned:,} steps"

    @property
    def num_ended(self) -> int:
        """Number of steps that have ended."""
        return int(self.cells[0])

    @property
    def num_planned(self) -> int:
        """Number of steps that are planned, with those that have ended."""
        return int(self.cells[1])

    @property
    def is_done(self) -> bool:
        """True when all planned steps have ended."""
        return self.num_ended >= self.num_planned

    def plan_steps(self, num_steps: int) -> None:
        """Set how many more steps are planned, for the progress bar."""
        self.cells[1] = self.cells[0] + num_steps

    def count_step(self) -> None:
        """Count a step that ended."""
        self.cells[0] += 1

    def count_phase(self) -> None:
        """Count a phase that began: of ranks that wait for each other, the one with the lowest count is late."""
        self.cells[PHASES_ENTERED] += 1

    def finish(self) -> None:
        """Record that everything is on disk."""
        self.cells[3] = 1


def create_counters(path: Path, num_ranks: int) -> None:
    """Write a file of zeros for that many ranks."""
    path.write_bytes(bytes(8 * _FIELDS * num_ranks))


def read_counters(path: Path) -> Sequence[Progress]:
    """Return the counters of all ranks, by rank."""
    cells = memoryview(read_whole(path, Most.STATUS)).cast("q")
    return [Progress(*cells[first : first + _FIELDS]) for first in range(0, len(cells), _FIELDS)]


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
            assert _STACK_SIGNAL is not None
            signal_main_thread(seen.pid, _STACK_SIGNAL)
    time.sleep(STACK_WITHIN_S)
    texts = (_text_from(file, size) for file, size in zip(files, sizes, strict=True))
    return [text.rpartition(STACK_HEADER)[2] for text in texts]


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


def append_message(path: str, text: str) -> None:
    """Append a line to the file, or to stderr if `path` is "", there below a progress bar of the job.

    Do not call it while steps are timed: the line is written at once.
    """
    if not path:
        begin = "\n" if _is_in_progress_bar() else ""
        sys.stderr.write(f"{begin}{text}\n")
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def _is_in_progress_bar() -> bool:
    """Return whether tqdm shows a bar on stderr: then the cursor is at its end, and what is written would follow it."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return any(getattr(bar, "fp", None) is not None and not bar.disable for bar in getattr(tqdm, "_instances", ()))


class MessageReader:
    """Reader of the lines that are appended to a file, which need not exist yet."""

    __slots__ = ("_path", "_read")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def take(self) -> list[str]:
        """Return the complete lines written since the last call."""
        text = b""
        with suppress(OSError), open_binary(self._path) as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8").splitlines()
