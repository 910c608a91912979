"""Places that allocate: the innermost line of the program in a stack, else the op of torch that asked for memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from traceq.facts.timeline.call_sites import user_line
from traceq.model import Frame

__all__ = ["NO_PYTHON", "NO_STACK", "Place", "place_of", "place_text"]

NO_STACK, NO_PYTHON = "(no stack)", "(no Python frame)"
"""Lines of allocations of which no stack was recorded, and of stacks of C++ alone, as those of backward are."""

_IN_NAME = "none"
"""File name of frames that a profile gave, whose name is `path/file.py(41): step`."""

_PASSED_OVER = re.compile(r"(^|/)(torchinductor_[^/]*|einops)/")
"""Generated code, and libraries that only pass calls on."""

_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\(|\b(AccumulateGrad)\b|c10d::(Reducer)::")
_OP = re.compile(r"at::_ops::(\w+)::call\(")


class Place(NamedTuple):
    """`line`: `model.py:41 forward`, or why there is none; `op` of torch where there is none, "" if unknown."""

    line: str
    op: str


def place_of(stack: Sequence[Frame]) -> Place:
    """Return the place of a stack, innermost frame first; frames of C++, torch and generated code are passed over."""
    if not stack:
        return Place(NO_STACK, "")
    frames = (frame for frame in stack if not _PASSED_OVER.search(frame.filename))
    if line := user_line([_text(frame) for frame in frames]):
        return Place(line, "")
    return Place(NO_PYTHON, _first(_NODE, stack) or _first(_OP, reversed(stack)))


def place_text(place: Place) -> str:
    """Return the line of the program, else why there is none and the op of torch."""
    return " ".join(part for part in place if part)


def _text(frame: Frame) -> str:
    return frame.name if frame.filename == _IN_NAME else f"{frame.filename}({frame.line}): {frame.name}"


def _first(pattern: re.Pattern[str], stack: Iterable[Frame]) -> str:
    """Return what a pattern captures of the first frame that it matches, "" without one."""
    matches = (pattern.search(frame.name) for frame in stack)
    return next((match[match.lastindex or 0] for match in matches if match), "")
