"""Messages that rank 0 prints while recording: lines in a file that the launcher shows, else stderr."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["MessageReader", "append_message"]


def append_message(path: str, text: str) -> None:
    """Append a line to the file, or to stderr if `path` is "".

    Do not call it while steps are timed: the line is written at once.
    """
    if not path:
        sys.stderr.write(f"{text}\n")
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class MessageReader:
    """Reader of the lines that are appended to a file, which need not exist yet."""

    __slots__ = ("_path", "_read")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def take(self) -> list[str]:
        """Return the complete lines written since the last call."""
        text = self._path.read_bytes()[self._read :] if self._path.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8").splitlines()
