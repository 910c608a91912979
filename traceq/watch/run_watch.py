"""The watch of a run by its launcher: reads what ranks append, and says what began, when, and what to look at."""

from __future__ import annotations

import shlex
import time

import msgspec
import numpy as np

from traceq.watch.captures import Captures
from traceq.watch.limits import FEWEST_BEFORE
from traceq.watch.onsets import OnsetDetector
from traceq.watch.sentences import onset_text
from traceq.watch.step_blocks import StepBlock, StepBlocks
from traceq.watch.step_store import RowReader, Sketches
from traceq.watch.watch_folder import HEALTHY, WatchFolder

_EVERY_S = 1.0


class RunWatch:
    """Watch of a run whose ranks begin to write at some time."""

    def __init__(self, folder: WatchFolder) -> None:
        self._folder = folder
        self._readers: list[RowReader] = []
        self._sketches: list[Sketches] = []
        self._blocks = StepBlocks(0)
        self._detector = OnsetDetector()
        self._captures = Captures(folder)
        self._num_blocks = 0
        self._last_look = 0.0
        self._is_over = False

    def look(self) -> list[str]:
        """Read what is new, at most once a second, and return the lines to print."""
        now = time.monotonic()
        if now - self._last_look < _EVERY_S:
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

    def _read(self) -> list[str]:
        if not self._readers:
            if not self._folder.is_watched:
                return []
            ranks = range(len(self._folder.read_job().hosts))
            self._readers = [RowReader(self._folder.steps, rank) for rank in ranks]
            self._sketches = [Sketches(self._folder.steps, rank) for rank in ranks]
            self._blocks = StepBlocks(len(ranks))
        rows = [reader.take() for reader in self._readers]
        for sketches, of_rank in zip(self._sketches, rows, strict=True):
            if len(of_rank):
                sketches.add(of_rank)
        blocks = self._blocks.add(rows)
        lines = [line for block in blocks if (line := self._onset_line(block))]
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
