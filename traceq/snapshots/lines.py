"""Places that allocate: the innermost line of the program in a stack, else the op of torch that asked for memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from traceq.facts.timeline.call_sites import user_line
from traceq.model import Frame

__all__ = ["NO_PYTHON", "NO_STACK", "Place", "place_text", "places_of"]

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


def places_of(stacks: Sequence[Sequence[Frame]]) -> list[Place]:
    """Return the place of each stack, innermost frame first; frames of C++, torch, generated code are passed over."""
    of_frame: dict[Frame, str] = {}

    def line_of(frame: Frame) -> str:
        line = of_frame.get(frame)
        if line is None:
            line = of_frame[frame] = "" if _PASSED_OVER.search(frame.filename) else user_line([_text(frame)])
        return line

    def place_of(stack: Sequence[Frame]) -> Place:
        if not stack:
            return Place(NO_STACK, "")
        if line := next(filter(None, map(line_of, stack)), ""):
            return Place(line, "")
        return Place(NO_PYTHON, _first(_NODE, stack) or _first(_OP, reversed(stack)))

    return [place_of(stack) for stack in stacks]


def place_text(place: Place) -> str:
    """Return the line of the program, else why there is none and the op of torch."""
    return " ".join(part for part in place if part)


def _text(frame: Frame) -> str:
    return frame.name if frame.filename == _IN_NAME else f"{frame.filename}({frame.line}): {frame.name}"


def _first(pattern: re.Pattern[str], stack: Iterable[Frame]) -> str:
    """Return what a pattern captures of the first frame that it matches, "" without one."""
    matches = (pattern.search(frame.name) for frame in stack)
    return next((match[match.lastindex or 0] for match in matches if match), "")
