"""The watch of a run by its launcher: reads what ranks append, says what began, and when some steps are to be traced.

Those are some healthy ones soon after the start, some at an onset, and those on demand. All ranks trace the same steps.
Their number is chosen so far ahead that each rank reads it in time; where one does not, none traces, and it is tried
again with more time.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import msgspec
import numpy as np

from traceq.errors import TraceqError
from traceq.long_runs.block_tree import BlockTree, RankRows, Store
from traceq.long_runs.limits import (
    CAPTURES_A_DAY,
    CAPTURES_OF_A_KIND,
    EVERY_S,
    FEWEST_BEFORE,
    LATE_STEPS,
    LEAD_S,
    LEAD_STEPS,
    TRACED_STEPS,
    TRIES,
)
from traceq.long_runs.onsets import Onset, OnsetDetector
from traceq.long_runs.sentences import onset_text
from traceq.long_runs.step_store import Sketches, StepBlock, last_rows
from traceq.long_runs.watch_folder import HEALTHY, CaptureRequest, WatchFolder

_RECENT, _POLL_S = 100, 0.2
_ON_DEMAND = "capture-"
_DAY_S = 86_400.0


def request_capture(
    folder: WatchFolder, name: str, *, last_step: int, step_s: float, num_steps: int = TRACED_STEPS, lead: int = 1
) -> CaptureRequest:
    """Ask all ranks to trace steps soon; `lead` multiplies the time they have to read it.

    Raises TraceqError if steps are being traced, or are about to be.
    """
    if folder.capture_path.is_file():
        latest = folder.read_capture()
        if last_step < latest.first_step + LATE_STEPS or folder.is_capturing(latest.name):
            raise TraceqError(f"{folder.path / latest.name}: being traced now; try again when that is complete")
    first = last_step + lead * max(LEAD_STEPS, math.ceil(LEAD_S / max(step_s, 1e-6)))
    request = CaptureRequest(name, first, num_steps, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    folder.write_capture(request)
    return request


def capture_now(run: Path, num_steps: int, within_s: float) -> Path:
    """Return the run of steps that all ranks of a watched run have traced now.

    Raises TraceqError if steps are being traced, and if these are not in time.
    """
    folder = WatchFolder(run)
    folder.read_job()
    last_step, step_s = latest_step(folder)
    request = request_capture(folder, _next_name(folder), last_step=last_step, step_s=step_s, num_steps=num_steps)
    deadline = time.monotonic() + within_s
    while not folder.has_captured(request.name):
        if time.monotonic() > deadline:
            ended_s_ago = time.time() - float(last_rows(folder.steps, 0)["time"][-1])
            stood = f"; its last step ended {ended_s_ago:.0f} s ago" if ended_s_ago > within_s else ""
            raise TraceqError(f"{run}: {request.name} is not complete within {within_s:g} s{stood}")
        time.sleep(_POLL_S)
    return folder.captured(request.name).path


def latest_step(folder: WatchFolder) -> tuple[int, float]:
    """Return the last step, and the length, s, of one of late. Raises TraceqError if none has ended."""
    rows = last_rows(folder.steps, 0)
    if not len(rows):
        raise TraceqError(f"{folder.path}: no step has ended yet")
    return int(rows["step"][-1]), float(np.median(rows["wall"][-_RECENT:]))


def on_demand_name(folder: WatchFolder) -> str:
    """Return the name of a capture on demand: that of one under way, which the launcher of another host asked for."""
    if folder.capture_path.is_file():
        latest = folder.read_capture().name
        is_under_way = folder.is_capturing(latest) or not folder.captured(latest).manifest_path.exists()
        if latest.startswith(_ON_DEMAND) and is_under_way:
            return latest
    return _next_name(folder)


def _next_name(folder: WatchFolder) -> str:
    return f"{_ON_DEMAND}{1 + sum(1 for _ in folder.path.glob(f'{_ON_DEMAND}*'))}"


class Captures:
    """Captures of a run that are asked for one after the other: automatically, or for an operator."""

    def __init__(self, folder: WatchFolder, waiting: Iterable[str] = (HEALTHY,)) -> None:
        self._folder = folder
        self._waiting = [(name, TRACED_STEPS) for name in waiting]
        self._request: CaptureRequest | None = None
        self._num_tries = 0  # of the first that waits
        self._past: list[tuple[float, str]] = []  # when, and for what kind

    def name_for(self, onset: Onset) -> str:
        """Return the name of the capture of an onset, which is asked for from now on; "" if there were enough today."""
        self._past = [each for each in self._past if each[0] > onset.time - _DAY_S]
        num_of_kind = sum(kind == onset.kind for _, kind in self._past)
        if len(self._past) >= CAPTURES_A_DAY or num_of_kind >= CAPTURES_OF_A_KIND:
            return ""
        self._past.append((onset.time, onset.kind))
        self.ask(f"onset-{onset.number}")
        return f"onset-{onset.number}"

    def ask(self, name: str, num_steps: int = TRACED_STEPS) -> None:
        """Let a capture wait for its turn."""
        self._waiting.append((name, num_steps))

    @property
    def is_waiting(self) -> bool:
        """Whether one waits, or is under way."""
        return bool(self._waiting)

    def look(self, last_step: int, step_s: float) -> Iterator[str]:
        """Ask for what is due, and yield the name of a capture that is complete."""
        if self._request is not None:
            name = self._request.name
            if self._folder.has_captured(name):
                self._request, self._num_tries = None, 0
                self._waiting.pop(0)
                yield name
            elif last_step < self._request.first_step + LATE_STEPS or self._folder.is_capturing(name):
                return
            else:  # a rank has not read it in time, or the steps could not be traced
                self._request = None
                if self._num_tries == TRIES or self._folder.captured(name).manifest_path.exists():
                    self._num_tries = 0
                    self._waiting.pop(0)
        if self._waiting:
            name, num_steps = self._waiting[0]
            try:
                self._request = request_capture(
                    self._folder,
                    name,
                    last_step=last_step,
                    step_s=step_s,
                    num_steps=num_steps,
                    lead=2**self._num_tries,
                )
                self._num_tries += 1
            except TraceqError:  # one on demand is under way, or this one, which another launcher has asked for
                latest = self._folder.read_capture()
                self._request = latest if latest.name == name else None


class RunWatch:
    """Watch of a run whose ranks begin to write at some time; of several launchers each reads those of its node.

    `open_store` returns the store of the job's ranks, by its address.
    """

    def __init__(self, folder: WatchFolder, open_store: Callable[[str], Store]) -> None:
        self._folder, self._open_store = folder, open_store
        self._rows: RankRows | None = None
        self._sketches: list[Sketches] = []
        self._tree: BlockTree | None = None
        self._detector = OnsetDetector()
        self._captures = Captures(folder)
        self._num_blocks = 0
        self._last_look = 0.0
        self._is_over = False

    def look(self) -> list[str]:
        """Read what is new, at most once a second, and return the lines to print."""
        now = time.monotonic()
        if now - self._last_look < EVERY_S:
            return []
        self._last_look = now
        return self.read()

    def read(self) -> list[str]:
        """Read what is new, and return the lines to print; a fault ends the watch, and not the job."""
        if self._is_over:
            return []
        try:
            return self._read()
        except Exception as error:  # noqa: BLE001 (whatever it is, the job of this launcher goes on)
            self._is_over = True
            return [f"traceq: no more onsets are looked for: {type(error).__name__}: {error}"]

    def close(self) -> None:
        """Use the job's store no longer."""
        if self._tree is not None:
            self._tree.close()

    def _begin(self) -> RankRows | None:
        """Return the rows that this launcher reads; None until the steps of the job are known."""
        node = self._folder.read_node()
        run = self._folder if node is None else WatchFolder(Path(node.run))
        if not run.is_watched:
            return None
        ranks = range(len(run.read_job().hosts)) if node is None else node.ranks
        self._sketches = [Sketches(run.steps, rank) for rank in ranks]
        if node is not None:
            self._tree = BlockTree(node, self._open_store)
        return RankRows(run.steps, ranks)

    def _read(self) -> list[str]:
        self._rows = self._rows or self._begin()
        if self._rows is None:
            return []
        rows, blocks = self._rows.read()
        for sketches, of_rank in zip(self._sketches, rows, strict=True):
            if len(of_rank):
                sketches.add(of_rank)
        lines = []
        if self._tree is not None:
            blocks = self._tree.exchange(self._rows.message(blocks))
            lines += self._tree.take_lines()
        lines += [line for block in blocks if (line := self._onset_line(block))]
        self._num_blocks += len(blocks)
        new = np.concatenate(rows)
        if len(new) and self._num_blocks >= FEWEST_BEFORE:
            names = self._captures.look(int(new["step"].max()), float(np.median(new["wall"])))
            lines += [self._capture_line(name) for name in names]
        return lines

    def _onset_line(self, block: StepBlock) -> str:
        onset = self._detector.add(block)
        if onset is None:
            return ""
        onset = msgspec.structs.replace(onset, capture=self._captures.name_for(onset))
        self._folder.append_onset(onset)
        traced = f"; some of these steps are traced into {self._folder.path / onset.capture}" if onset.capture else ""
        return f"traceq: {onset_text(onset)}{traced}"

    def _capture_line(self, name: str) -> str:
        path = self._folder.path
        if name == HEALTHY:
            return f"traceq: healthy steps are traced: {path / HEALTHY}"
        words = ["diff", str(path / HEALTHY), str(path / name)]
        if not self._folder.has_captured(HEALTHY):
            words = ["show", str(path / name)]
        return f"traceq: {name}: {shlex.join(['traceq', *words])}"


def main(parent: int, run: Path) -> None:
    """Watch a run from a process of its own: until its parent has ended, or ends it by SIGTERM."""
    is_over = Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is the loop's, and this may be its last second
    watch = RunWatch(WatchFolder(run), no_store)
    while os.getppid() == parent and not is_over.wait(EVERY_S):
        _say(watch.look())
    _say(watch.read())


def _say(lines: list[str]) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")


def no_store(address: str) -> Store:
    """Raise LookupError: one that reads the rows of all ranks needs no store."""
    raise LookupError(address)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
