"""Names of the sides of a diff: arms, files or folders."""

from __future__ import annotations

import re
from pathlib import Path

from traceq.compare.side import Side

__all__ = ["side_names"]


_TRACE_SUFFIX = re.compile(r"(\.\d{10,}|_\d+\.\d{10,})?(\.pt)?(\.trace)?\.json(\.gz|\.zst)?$")
"""What a profiler adds to the name of a trace: its process, its time, and what it is."""


def side_names(a: Side, b: Side) -> tuple[str, str]:
    """Return the names of the sides: their arms or files, else their folders, else A and B."""
    for names in ([side.run.arm or _stem(Path(side.path)) for side in (a, b)], [_folder(side) for side in (a, b)]):
        if names[0] != names[1]:
            return names[0], names[1]
    return "A", "B"


def _folder(side: Side) -> str:
    path = Path(side.path)
    return _stem(path.parent if path.name == side.run.arm else path)


def _stem(path: Path) -> str:
    """Return a file's name without what says that it is a trace; dots in a name stay (`Qwen1.5-0.5B`)."""
    return _TRACE_SUFFIX.sub("", path.name) or path.name
