"""What a server has read: the last results, as long as the files have not changed since."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from traceq.agent_tools.limits import MOST_FILES, MOST_RESULTS
from traceq.compare.diff import diff, diff_run
from traceq.compare.result import Diffs
from traceq.engines.analyze_path import PathReader, sheet_of
from traceq.engines.rank_reader import SameProcess
from traceq.errors import UnreadableInput, UsageFault
from traceq.locations import Place, Remote, place
from traceq.model import Run
from traceq.report import Sheet
from traceq.runs.memory_snapshot import is_memory_snapshot
from traceq.runs.read import read
from traceq.runs.run_folder import is_run
from traceq.snapshots.show import snapshot_sheet

_Key = tuple[Any, ...]


class Readings:
    """Sheets, runs and comparisons by path, read again where files have changed; URLs only where `urls` allows them.

    Nothing is written: not even the summaries that commands keep in the user's cache.
    """

    def __init__(self, *, urls: bool = False) -> None:
        self._urls = urls
        self._sheets, self._diffs = lru_cache(MOST_RESULTS)(_sheet), lru_cache(MOST_RESULTS)(_compared)
        self._run: tuple[_Key, Run] | None = None

    def sheet(self, path: str, ranks: set[int] | None = None) -> Sheet:
        """Return the reports of all analyses, or those of a memory snapshot. Raises UnreadableInput, UsageFault."""
        where = self.place(path)
        return self._sheets(path, None if ranks is None else frozenset(ranks), _state(where))

    def run(self, path: str, ranks: set[int] | None = None, *, strict: bool = False) -> Run:
        """Return a run with its traces, the last of which stays in memory. Raises UnreadableInput, UsageFault."""
        where = self.place(path)
        if is_memory_snapshot(where):
            raise UnreadableInput(path, "a memory snapshot, which has no events", "a trace")
        key = (path, ranks and tuple(sorted(ranks)), strict, _state(where))
        if self._run is None or self._run[0] != key:
            self._run = None
            self._run = key, read(path, strict=strict, ranks=ranks)
        return self._run[1]

    def diffs(self, a: str, b: str, threshold_pct: float) -> Diffs:
        """Return the comparison of two paths, or with b "" of a recorded run. Raises UnreadableInput, UsageFault."""
        places = [self.place(path) for path in (a, b) if path]
        return self._diffs(a, b, threshold_pct, tuple(map(_state, places)))

    def place(self, path: str) -> Place:
        """Return the location of a path. Raises UsageFault for what no trace can be read from."""
        if not path.strip() or "\0" in path:
            raise UsageFault(f"{path!r} is no path; expected that of a trace, a folder of traces or a recorded run")
        if "://" in path and not self._urls:
            raise UsageFault(f"{path}: this server reads local files only; traceq mcp --urls reads URLs, too")
        where = place(path)
        with suppress(OSError):
            if isinstance(where, Path) and where.exists() and not where.is_file() and not where.is_dir():
                raise UsageFault(f"{path}: neither a file nor a folder")
        return where


def _sheet(path: str, ranks: frozenset[int] | None, _state: _Key) -> Sheet:
    if is_memory_snapshot(place(path)):
        return snapshot_sheet(path)
    chosen = None if ranks is None else set(ranks)
    return sheet_of(path, ranks=chosen, start=lambda: nullcontext(SameProcess()))[0]


def _compared(a: str, b: str, threshold_pct: float, _state: _Key) -> Diffs:
    reader = PathReader(SameProcess)
    if not b:
        return diff_run(a, threshold_pct=threshold_pct, read_arm_ranks=reader.arms)
    pair = diff(a, b, threshold_pct=threshold_pct, read_ranks=reader.ranks)
    return Diffs(pair.a_name, (pair,))


def _state(where: Place) -> _Key:
    """Return what changes with the files of a path: their times, sizes and inodes; nothing for a URL."""
    if isinstance(where, Remote):
        return ()
    with suppress(OSError):
        if where.is_file() or not is_run(where.parent):
            return tuple(_files(where))
        return tuple(_files(where.parent))  # an arm: the steps of its run are beside it
    return ()


def _files(where: Path) -> Iterator[_Key]:
    if where.is_file():
        status = where.stat()
        yield str(where), status.st_mtime_ns, status.st_size, status.st_ino
        return
    paths = (Path(folder, name) for folder, _, names in os.walk(where) for name in sorted(names))
    for path in islice(paths, MOST_FILES):
        with suppress(OSError):
            status = path.stat()
            yield str(path), status.st_mtime_ns, status.st_size, status.st_ino
