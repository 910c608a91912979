"""Kinds and lines of allocations: each rule on a stack of a few frames, and what lifetimes add."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from snapshots import APPLY, CALL, EMPTY, ENGINE, MIB, NODE, OPTIMIZER, Allocator, Row, stack, training, user

from traceq.model import Frame
from traceq.runs.memory_snapshot import read_memory_snapshots
from traceq.snapshots.lifetimes import lifetimes
from traceq.snapshots.moments import Kind, Place, kinds, places_of

BASE = 1 << 40


def torch_frame(place: str) -> Row:
    frame = user(place)
    return {**frame, "filename": frame["filename"].replace("/home/me/", "/usr/lib/python3/site-packages/")}


def cpp(name: str) -> Row:
    return {"filename": "??", "line": 0, "name": name}


def kinds_of(allocator: Allocator, folder: Path, **more: Any) -> list[Kind]:
    """Kind of each allocation, in the order of their `alloc`."""
    (snapshot,) = read_memory_snapshots(allocator.write(folder / "s.pickle", **more))
    allocations = lifetimes(snapshot)
    numbers = kinds(snapshot, allocations)
    order = sorted(range(len(numbers)), key=lambda index: int(allocations.start[index]))
    return [tuple(Kind)[int(numbers[index])] for index in order]


RECOMPUTE = torch_frame("torch/utils/checkpoint.py:1400 unpack_hook")
GEMM = cpp("void at::cuda::blas::gemm_and_bias<float>(bool, bool, long, long, long, float, float const*)")


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([user("model.py:4 forward"), CALL], Kind.ACTIVATIONS),
        ([torch_frame("torch/nn/functional.py:3 cross_entropy"), user("train.py:4 main")], Kind.ACTIVATIONS),
        ([NODE, ENGINE], Kind.GRADIENTS),
        ([cpp("c10d::Reducer::initialize_buckets(std::vector<unsigned long>)")], Kind.GRADIENTS),
        (
            [torch_frame("torch/autograd/graph.py:9 _engine_run_backward"), torch_frame("torch/_tensor.py:2 backward")],
            Kind.GRADIENTS,
        ),
        ([user("ops.py:4 backward"), torch_frame("torch/autograd/function.py:311 apply")], Kind.GRADIENTS),
        ([user("ops.py:4 backward"), user("train.py:5 main")], Kind.OTHER),
        ([user("ops.py:4 forward"), torch_frame("torch/autograd/function.py:500 apply"), CALL], Kind.ACTIVATIONS),
        ([user("model.py:4 forward"), CALL, RECOMPUTE, NODE, ENGINE], Kind.ACTIVATIONS),  # recomputed
        ([APPLY, user("train.py:4 main")], Kind.WEIGHTS),
        ([torch_frame("torch/nn/modules/linear.py:9 __init__"), user("model.py:2 __init__")], Kind.WEIGHTS),
        ([user("model.py:2 __init__")], Kind.OTHER),
        ([torch_frame("torch/distributed/fsdp/_fully_shard/_fsdp_param.py:5 init_all_gather"), CALL], Kind.WEIGHTS),
        ([torch_frame("torch/distributed/fsdp/_fully_shard/_fsdp.py:5 foreach_reduce"), CALL], Kind.GRADIENTS),
        ([torch_frame("torch/optim/adam.py:180 _init_group"), OPTIMIZER], Kind.OPTIMIZER_STATE),
        ([torch_frame("torch/optim/optimizer.py:700 load_state_dict")], Kind.OPTIMIZER_STATE),
        ([torch_frame("torch/optim/lr_scheduler.py:5 step")], Kind.OTHER),
        ([user("train.py:4 batch")], Kind.OTHER),
        ([user("model.py:4 forward"), CALL, OPTIMIZER], Kind.ACTIVATIONS),  # a closure
    ],
)  # fmt: skip
def test_the_innermost_frame_that_says_what_memory_is_for_decides(
    frames: list[Row], kind: Kind, tmp_path: Path
) -> None:
    allocator = Allocator()
    allocator.alloc(BASE, 10, stack(*frames))
    assert kinds_of(allocator, tmp_path) == [kind]


@pytest.mark.parametrize(
    ("caller", "kind"),
    [
        (GEMM, Kind.WORKSPACE),
        (cpp("at::cuda::getNewWorkspace()"), Kind.WORKSPACE),
        (cpp("at::native::Workspace::Workspace(unsigned long)"), Kind.WORKSPACE),
        (EMPTY, Kind.ACTIVATIONS),
    ],
)
def test_what_a_library_asks_the_allocator_for_itself_is_a_workspace(caller: Row, kind: Kind, tmp_path: Path) -> None:
    allocator = Allocator()
    malloc = stack()[0]
    allocator.alloc(BASE, 10, [malloc, caller, GEMM, user("model.py:4 forward"), CALL])
    assert kinds_of(allocator, tmp_path) == [kind]


def test_a_step_of_training_has_every_kind(tmp_path: Path) -> None:
    assert kinds_of(training(), tmp_path) == [
        Kind.WEIGHTS,
        Kind.OTHER,
        Kind.ACTIVATIONS,
        Kind.ACTIVATIONS,
        Kind.OTHER,  # the loss
        Kind.GRADIENTS,
        Kind.GRADIENTS,
        Kind.OPTIMIZER_STATE,
        Kind.OPTIMIZER_STATE,
        Kind.OPTIMIZER_TEMPORARIES,
        Kind.ACTIVATIONS,
    ]


STEP = stack("optimizer.py:7 step", OPTIMIZER)


def test_what_an_optimizer_allocates_is_undecided_until_its_step_has_ended(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(BASE, 10, STEP)
    allocator.alloc(BASE + MIB, 10, STEP)
    allocator.free(BASE + MIB)
    temporary = Kind.OPTIMIZER_TEMPORARIES
    assert kinds_of(allocator, tmp_path) == [Kind.OTHER, temporary]
    ended = {"stage": "END", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": allocator.time_us}
    assert kinds_of(allocator, tmp_path, external_annotations=[ended]) == [Kind.OPTIMIZER_STATE, temporary]
    early = ended | {"time_us": 5}
    assert kinds_of(allocator, tmp_path, external_annotations=[early]) == [Kind.OTHER, temporary]
    allocator.alloc(BASE + MIB, 10, stack("train.py:4 batch"))  # of another thread: no end of the step
    assert kinds_of(allocator, tmp_path)[0] is Kind.OTHER
    allocator.alloc(BASE + 2 * MIB, 10, stack("model.py:4 forward", CALL))
    assert kinds_of(allocator, tmp_path)[0] is Kind.OPTIMIZER_STATE


def test_what_outlives_a_step_of_the_optimizer_is_no_activation(tmp_path: Path) -> None:
    allocator = Allocator()
    for number in range(2):
        allocator.alloc(BASE + number * MIB, 10, stack("model.py:4 forward", CALL))
    allocator.free(BASE)
    allocator.alloc(BASE + 2 * MIB, 10, STEP)
    allocator.alloc(BASE, 10, stack("model.py:4 forward", CALL))
    assert kinds_of(allocator, tmp_path) == [Kind.ACTIVATIONS, Kind.OTHER, Kind.OPTIMIZER_STATE, Kind.ACTIVATIONS]


def test_state_of_the_optimizer_from_before_the_history_is_known_once_a_pass_begins(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(BASE, 8 * MIB)
    allocator.alloc(BASE, 10, STEP)
    allocator.alloc(BASE + MIB, 10, stack("model.py:4 forward", CALL))
    allocator.alloc(BASE + 2 * MIB, 10, stack("model.py:4 forward", CALL))
    expected = [Kind.OPTIMIZER_STATE, Kind.ACTIVATIONS, Kind.ACTIVATIONS]
    assert sorted(kinds_of(allocator, tmp_path, last=1)) == sorted(expected)


def test_what_was_allocated_before_the_history_has_a_kind_if_its_block_has_a_stack(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(BASE, 8 * MIB)
    allocator.alloc(BASE, 10, stack(APPLY))
    allocator.alloc(BASE + MIB, 10)
    allocator.alloc(BASE + 2 * MIB, 10, stack("model.py:4 forward", CALL))
    assert sorted(kinds_of(allocator, tmp_path, last=1)) == sorted([Kind.WEIGHTS, Kind.UNRECORDED, Kind.ACTIVATIONS])


def test_the_categories_of_a_profile_decide(tmp_path: Path) -> None:
    names = [
        "parameter",
        "gradient",
        "optimizer_state",
        "activation",
        "autograd_detail",
        "input",
        "temporary",
        "unknown",
    ]
    rows = [{"action": "alloc", "addr": n, "size": 1, "frames": [], "category": name} for n, name in enumerate(names)]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [rows]}))
    (snapshot,) = read_memory_snapshots(path)
    numbers = kinds(snapshot, lifetimes(snapshot)).tolist()
    assert [tuple(Kind)[number] for number in numbers] == [
        Kind.WEIGHTS,
        Kind.GRADIENTS,
        Kind.OPTIMIZER_STATE,
        Kind.ACTIVATIONS,
        Kind.ACTIVATIONS,
        Kind.OTHER,
        Kind.OTHER,
        Kind.OTHER,
    ]


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([], Place("(no stack)", "")),
        (stack("model.py:41 forward", "train.py:3 main"), Place("model.py:41 forward", "")),
        (stack(CALL, "train.py:3 main"), Place("train.py:3 main", "")),
        (stack(NODE, ENGINE), Place("(no Python frame)", "MmBackward0")),
        (
            stack(cpp("at::_ops::empty::call(int)"), cpp("at::_ops::mul_Tensor::call(at::Tensor const&)")),
            Place("(no Python frame)", "mul_Tensor"),
        ),
        (stack({"filename": "/tmp/torchinductor_me/ab/cab.py", "line": 9, "name": "call"}, "train.py:3 main"),
         Place("train.py:3 main", "")),
        ([{"filename": "none", "line": 0, "name": "/home/me/model.py(41): forward"}], Place("model.py:41 forward", "")),
        ([cpp("main")], Place("(no Python frame)", "")),
    ],
)  # fmt: skip
def test_the_line_is_the_innermost_of_the_program(frames: list[Row], place: Place) -> None:
    assert places_of([[Frame(**frame) for frame in frames]]) == [place]
