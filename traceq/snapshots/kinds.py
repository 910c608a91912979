"""Kinds of allocations, by the innermost frame of their stack that says what memory is for, and by their lifetime.

The rules are those of docs/analyses/snapshots.md. Where none decides, the kind is `other`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from traceq.model import Action, Frame, MemorySnapshot
from traceq.snapshots.lifetimes import BEFORE, Lifetimes


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
