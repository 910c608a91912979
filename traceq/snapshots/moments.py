"""Who is alive at the peak, at an out-of-memory error and at the end, by kind and place, to the byte.

The kind is told by the innermost frame of the stack that says what memory is for, and by the lifetime: the rules are
those of docs/analyses/snapshots.md. Where none decides, it is `other`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceq.facts.timeline.call_sites import user_line
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Action, Frame, History, MemorySnapshot
from traceq.snapshots.lifetimes import BEFORE, Lifetimes, lifetimes, reserved_levels


class Kind(StrEnum):
    """What memory is for, in the order in which people read it."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    OPTIMIZER_TEMPORARIES = "optimizer temporaries"
    ACTIVATIONS = "activations"
    WORKSPACE = "workspace"
    OTHER = "other"
    UNRECORDED = "unrecorded"


_KINDS = tuple(Kind)


class _Role(IntEnum):
    """What a frame says of the memory that is allocated below it."""

    NONE = 0
    WORKSPACE = 1
    STATE = 2
    OPTIMIZER = 3
    BACKWARD = 4
    WEIGHTS = 5
    FORWARD = 6


_BACKWARD = re.compile(r"torch::autograd::(\w+::)?(Python)?Engine::|torch::autograd::Node::operator|c10d::Reducer")
_PYTHON = (
    (_Role.STATE, r"torch/optim/(?!lr_scheduler)\w+\.py", r"_init_group|load_state_dict|_process_value.*"),
    (_Role.OPTIMIZER, r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py", r"(?!__init__|zero_grad).*"),
    (_Role.BACKWARD, r"torch/autograd/(__init__|graph)\.py|torch/_tensor\.py", r"backward|grad|_engine_run_backward"),
    (_Role.BACKWARD, r"torch/distributed/(_composable/)?fsdp/.*", r".*(reduce|post_backward).*"),
    (_Role.WEIGHTS, r"torch/distributed/(_composable/)?fsdp/.*", r".*(all_gather|unshard|init_sharded_param).*"),
    (_Role.WEIGHTS, r"torch/nn/modules/\w+\.py", r"__init__|reset_parameters|_apply|_?load_(from_)?state_dict"),
    (_Role.WEIGHTS, r"torch/nn/(init|parameter)\.py", r".*"),
    (_Role.WEIGHTS, r"transformers/modeling_utils\.py", r"from_pretrained|_load_\w*"),
    (_Role.FORWARD, r"torch/nn/modules/module\.py", r"_call_impl|_slow_forward"),
    (_Role.FORWARD, r"torch/nn/functional\.py", r".*"),
)
_PATTERNS = tuple((role, re.compile(rf"^(.*/)?({path})$"), re.compile(rf"^({name})$")) for role, path, name in _PYTHON)
_ALLOCATOR = re.compile(r"^(std::|c10::|torch::unwind|torch::CapturedTraceback|torch::cuda::)")
_WORKSPACE = re.compile(r"at::cuda::(blas::|getNewWorkspace|getCUDABlas)|[wW]orkspace|cudnn|cusparse|cusolver")
_TENSOR = re.compile(r"at::(detail::)?_?empty|at::TensorBase at::detail::_?empty")
_OF_FUNCTION = re.compile(r"(^|/)torch/autograd/function\.py$")

_BY_CATEGORY = {
    "parameter": Kind.WEIGHTS,
    "gradient": Kind.GRADIENTS,
    "optimizer_state": Kind.OPTIMIZER_STATE,
    "activation": Kind.ACTIVATIONS,
    "autograd_detail": Kind.ACTIVATIONS,
}
"""Kind of a category of `torch.profiler._memory_profiler`."""


def kinds(snapshot: MemorySnapshot, allocations: Lifetimes) -> NDArray[np.int64]:
    """Return the kind of each allocation, as an index into the members of Kind: int64[L]."""
    of_frame: dict[Frame, _Role] = {}
    roles = np.array([_role(stack, of_frame) for stack in snapshot.stacks], np.int64)
    role, kind = roles[allocations.stack], np.full(len(allocations.start), _KINDS.index(Kind.OTHER))
    for of_role, name in (
        (_Role.WORKSPACE, Kind.WORKSPACE),
        (_Role.STATE, Kind.OPTIMIZER_STATE),
        (_Role.BACKWARD, Kind.GRADIENTS),
        (_Role.WEIGHTS, Kind.WEIGHTS),
        (_Role.FORWARD, Kind.ACTIVATIONS),
    ):
        kind[role == of_role] = _KINDS.index(name)
    passes, steps = _ends(snapshot, roles)
    kind[(role == _Role.FORWARD) & _outlives(allocations, steps)] = _KINDS.index(Kind.OTHER)
    is_state, is_freed = _outlives(allocations, passes), allocations.end < allocations.num_actions
    kind[(role == _Role.OPTIMIZER) & is_state] = _KINDS.index(Kind.OPTIMIZER_STATE)
    kind[(role == _Role.OPTIMIZER) & ~is_state & is_freed] = _KINDS.index(Kind.OPTIMIZER_TEMPORARIES)
    kind[(allocations.start == BEFORE) & (allocations.stack == 0)] = _KINDS.index(Kind.UNRECORDED)
    for number, category in enumerate(snapshot.categories):
        if category in _BY_CATEGORY:
            kind[allocations.category == number] = _KINDS.index(_BY_CATEGORY[category])
    return kind


def _ends(snapshot: MemorySnapshot, roles: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (actions after which no step of the optimizer is under way, those after which one has ended), ascending.

    None is under way before an allocation of a forward or backward pass, nor where an annotation says that it ends.
    """
    history = snapshot.history
    rows = np.flatnonzero(history.action == Action.ALLOC)
    role = roles[history.stack[rows]]
    is_step, is_pass = np.isin(role, (_Role.OPTIMIZER, _Role.STATE)), np.isin(role, (_Role.FORWARD, _Role.BACKWARD))
    rows, is_step = rows[is_step | is_pass], is_step[is_step | is_pass]
    annotated = np.zeros(0, np.int64)
    if (history.time_us >= 0).all():
        annotated = np.searchsorted(history.time_us, np.array(snapshot.optimizer_ends_us, np.int64), "right") - 1
    ends = rows[1:][is_step[:-1] & ~is_step[1:]] - 1
    return np.union1d(rows[~is_step] - 1, annotated), np.union1d(ends, annotated)


def _outlives(allocations: Lifetimes, ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which allocations are alive after the first of some actions that follows their start: bool[L]."""
    following = np.append(ends, np.iinfo(np.int64).max)[np.searchsorted(ends, allocations.start)]
    return allocations.end > following


def _role(stack: Sequence[Frame], of_frame: dict[Frame, _Role]) -> _Role:
    """Return what a stack says: whether it allocates a workspace, else the role of the innermost frame that has one.

    `of_frame` holds the roles of frames that are known.
    """
    caller = next((frame.name for frame in stack if not _ALLOCATOR.match(frame.name)), "")
    if _WORKSPACE.search(caller) and not _TENSOR.search(caller):
        return _Role.WORKSPACE
    for frame, outer in zip(stack, [*stack[1:], None], strict=False):
        if frame.name == "backward" and outer is not None and _OF_FUNCTION.search(outer.filename):
            return _Role.BACKWARD  # of a torch.autograd.Function
        role = of_frame.get(frame)
        if role is None:
            role = of_frame[frame] = _frame_role(frame)
        if role is not _Role.NONE:
            return role
    return _Role.NONE


def _frame_role(frame: Frame) -> _Role:
    if not frame.filename.endswith(".py"):
        return _Role.BACKWARD if _BACKWARD.search(frame.name) else _Role.NONE
    roles = (role for role, path, name in _PATTERNS if path.match(frame.filename) and name.match(frame.name))
    return next(roles, _Role.NONE)


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
