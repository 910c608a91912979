"""Messages that rank 0 prints while recording: lines in a file that the launcher shows, else stderr."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from traceq.locations import open_binary


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
