"""Writer of the samples in `steps/rank<r>.jsonl`; a killed process loses at most one block."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from traceq.runs.step_log import Line

__all__ = ["Journal"]


class Journal:
    """Open file of samples; it is created at once, so that a rank without samples is visible, too."""

    __slots__ = ("_encoder", "_file", "_path")

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def write(self, lines: Iterable[Line]) -> None:
        """Append the lines in one write; call it between blocks, so that it is not part of a step.

        Raises FileNotFoundError once the file is gone: nobody could read what is written.
        """
        self._path.stat()
        self._file.write(b"".join(self._encoder.encode(line) + b"\n" for line in lines))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
