"""Who is alive at the peak, at an out-of-memory error and at the end, by kind and place, to the byte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceq.facts.timeline.call_sites import user_line
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Action, Frame, History, MemorySnapshot
from traceq.snapshots.kinds import Kind, kinds
from traceq.snapshots.lifetimes import BEFORE, Lifetimes, lifetimes, reserved_levels

_NO_STACK, _NO_PYTHON = "(no stack)", "(no Python frame)"
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


_KINDS = tuple(Kind)


class Holding(NamedTuple):
    """Allocations of one kind by one place, alive at a moment."""

    kind: Kind
    place: Place
    num: int
    size_bytes: int


@frozen
class Moment:
    """What is alive on a device after an action: `name` is peak, oom or end.

    `action` from 0, BEFORE for before the first; `time_ns` since the first action, None where unknown;
    `reserved_bytes` None where the history does not give it. Of an `oom` what was asked for, by whom, and what the
    driver still had. `holdings` are the largest first.
    """

    device: int
    name: str
    action: int
    time_ns: int | None
    reserved_bytes: int | None
    holdings: tuple[Holding, ...]
    oom_bytes: int | None = None
    device_free_bytes: int | None = None
    place: Place | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that are alive, as they were asked for."""
        return sum(holding.size_bytes for holding in self.holdings)

    def by_kind(self) -> dict[Kind, tuple[int, int]]:
        """Return (allocations, bytes) of each kind that is alive, in the order of Kind."""
        held = {kind: [each for each in self.holdings if each.kind is kind] for kind in Kind}
        return {
            kind: (sum(h.num for h in each), sum(h.size_bytes for h in each)) for kind, each in held.items() if each
        }


@frozen(eq=False)
class DeviceMemory:
    """The memory of one device: a snapshot, the lifetimes of its allocations, and its moments, of which `end` is last.

    Where the history has no `alloc`, `end` is the only one.
    """

    snapshot: MemorySnapshot
    allocations: Lifetimes
    moments: tuple[Moment, ...]

    @property
    def device(self) -> int:
        """Number of the device."""
        return self.snapshot.device

    @property
    def has_history(self) -> bool:
        """Whether the peak is known."""
        return len(self.moments) > 1

    @property
    def largest(self) -> Moment:
        """The peak; without a history the end."""
        return self.moments[0]

    def moment(self, name: str) -> Moment | None:
        """Return the moment of a name, None where the file has none."""
        return next((moment for moment in self.moments if moment.name == name), None)


def device_memory(snapshot: MemorySnapshot) -> DeviceMemory:
    """Return the peak, the last out-of-memory error and the end, as far as a snapshot knows them."""
    history, allocations = snapshot.history, lifetimes(snapshot)
    places = places_of(snapshot.stacks)
    distinct = tuple(dict.fromkeys(places))
    number = {place: index for index, place in enumerate(distinct)}
    of_stack = np.array([number[place] for place in places], np.int64)
    kind = kinds(snapshot, allocations)

    def holdings(alive: NDArray[np.int64]) -> tuple[Holding, ...]:
        groups = group([kind[alive], of_stack[allocations.stack[alive]]])
        rows = zip(groups.keys.tolist(), groups.count(), groups.sum(allocations.size[alive]), strict=True)
        held = (Holding(_KINDS[code], distinct[place], num, size) for (code, place), num, size in rows)
        return tuple(sorted(held, key=lambda each: (-each.size_bytes, _KINDS.index(each.kind), each.place)))

    result: list[Moment] = []
    if (history.action == Action.ALLOC).any():
        levels, reserved = allocations.levels(), reserved_levels(snapshot)
        is_reserved_known = bool((reserved >= levels).all())
        actions = [("peak", int(np.argmax(levels)) + BEFORE)]
        actions += [("oom", row) for row in np.flatnonzero(history.action == Action.OOM)[-1:].tolist()]
        for name, action in actions:
            its_reserved = int(reserved[action - BEFORE]) if is_reserved_known else None
            alive = holdings(allocations.alive_after(action))
            moment = Moment(snapshot.device, name, action, _time_ns(history.time_us, action), its_reserved, alive)
            result.append(_with_oom(moment, history, places) if name == "oom" else moment)
    last, reserved_bytes = len(history) - 1, int(snapshot.segments.size.sum())
    at_end = holdings(allocations.at_end)
    result.append(Moment(snapshot.device, "end", last, _time_ns(history.time_us, last), reserved_bytes, at_end))
    return DeviceMemory(snapshot, allocations, tuple(result))


def _with_oom(moment: Moment, history: History, places: Sequence[Place]) -> Moment:
    free, stack = int(history.device_free[moment.action]), int(history.stack[moment.action])
    return replace(
        moment,
        oom_bytes=int(history.size[moment.action]),
        device_free_bytes=free if free >= 0 else None,
        place=places[stack],
    )


def _time_ns(time_us: NDArray[np.int64], action: int) -> int | None:
    """Return when an action happened since the first, None where times are missing."""
    if len(time_us) == 0 or (time_us < 0).any():
        return None
    return 1000 * int(time_us[max(action, 0)] - time_us[0])


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
            return Place(_NO_STACK, "")
        if line := next(filter(None, map(line_of, stack)), ""):
            return Place(line, "")
        return Place(_NO_PYTHON, _first(_NODE, stack) or _first(_OP, reversed(stack)))

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
