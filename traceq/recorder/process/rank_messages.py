"""What rank 0 has to say while it records: lines in a file that the launcher shows, or stderr where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["News", "append_message"]


def append_message(path: str, text: str) -> None:
    """Append a line. Not while steps are timed: it is written at once."""
    if not path:
        sys.stderr.write(f"{text}\n")
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class News:
    """The lines of a file as they come; there may not be a file yet."""

    __slots__ = ("_path", "_read")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def take(self) -> list[str]:
        """Whole lines that were written since the last call."""
        text = self._path.read_bytes()[self._read :] if self._path.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8").splitlines()
