"""Appends samples to `steps/rank<r>.jsonl`; a kill loses one group at most."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from traceq.runs.step_log import Line

__all__ = ["Journal"]


class Journal:
    """An open file of samples. It exists from the start, so that a rank that measured nothing is seen to be there."""

    __slots__ = ("_encoder", "_file")

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def write(self, lines: Iterable[Line]) -> None:
        """Append the lines in one write. Call it between groups: it must not be part of a step."""
        self._file.write(b"".join(self._encoder.encode(line) + b"\n" for line in lines))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
