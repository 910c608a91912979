"""Files of the working tree that lines of a trace are in: a trace names `train.py:41 forward`, without a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from traceq.errors import TraceqError
from traceq.frozen import frozen
from traceq.locations import read_whole
from traceq.rules.evaluate import RuleOutcome

__all__ = ["SourceLine", "SourceTree"]

_LINE = re.compile(r"^(?P<file>[^/:]+\.py):(?P<line>[0-9]{1,7}) (?P<function>.+)")
_MOST_FILES = 100_000
"""Files of a tree that are looked through: about a second. What a larger tree holds is not known to be unique."""
_LARGEST = 4 << 20
"""Bytes of a source file that is read; generated ones of torch have one million."""


@frozen
class SourceLine:
    """A line of a file, whose path is relative to the working tree."""

    file: str
    line: int


class SourceTree:
    """Python files of the checkout of a CI job that is in one (GITHUB_WORKSPACE), else below the working directory.

    Without hidden folders and environments. It is looked through when a line is first asked for.
    """

    def __init__(self) -> None:
        self._root = Path()
        self._files: Mapping[str, list[Path]] | None = None

    def line_of(self, outcome: RuleOutcome) -> SourceLine | None:
        """Return the line of the largest cause that has one in this tree."""
        causes = outcome.shown.causes if outcome.shown else ()
        return next(filter(None, (self.find(cause.line) for cause in causes)), None)

    def find(self, recorded: str) -> SourceLine | None:
        """Return `train.py:41 forward` with its path; None unless exactly one file of that name has that line."""
        match = _LINE.fullmatch(recorded)
        if match is None:
            return None
        if self._files is None:
            self._files = {}
            with suppress(FileNotFoundError):  # the working directory is gone
                self._root = _root()
                self._files = _by_name(self._root)
        number = int(match["line"])
        holding = [path for path in self._files.get(match["file"], ()) if _has(path, number, match["function"])]
        return SourceLine(holding[0].relative_to(self._root).as_posix(), number) if len(holding) == 1 else None


def _root() -> Path:
    here, workspace = Path.cwd(), os.environ.get("GITHUB_WORKSPACE")
    root = Path(workspace).resolve() if workspace else here
    return root if here.is_relative_to(root) else here


def _by_name(root: Path) -> Mapping[str, list[Path]]:
    """Return the Python files below a folder by name; none of a folder that has too many files."""
    files: dict[str, list[Path]] = {}
    num_files = 0
    for folder, folders, names in os.walk(root):
        num_files += len(names)
        if num_files > _MOST_FILES:
            return {}
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = (each for each in folders if not each.startswith("."))
        for name in names:
            if name.endswith(".py"):
                files.setdefault(name, []).append(Path(folder, name))
    return files


def _has(path: Path, number: int, function: str) -> bool:
    """Return whether a file has a line of that number, and defines the function."""
    try:
        text = read_whole(path, _LARGEST).decode(errors="replace")
    except (OSError, TraceqError):
        return False
    is_defined = not function.isidentifier() or re.search(rf"\bdef {function}\b", text)
    return bool(is_defined) and number <= text.count("\n") + (not text.endswith("\n"))
