"""Which op each kernel's work belongs to, and what is known of each piece of device time."""

from __future__ import annotations

import numpy as np
import pytest
from builder import AUTOGRAD, Event, build, call, kernel, launch, op

from traceq.facts.roofline.modelled_ops import TimeKind, modelled_ops
from traceq.facts.roofline.op_work import rank_work
from traceq.runs.windows import with_captured_graphs

MM = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}
ADD = {"Input Dims": [[8, 4], [8, 4]], "Input type": ["float", "float"]}


def test_flops_count_once_for_all_kernels_of_an_op_and_every_nanosecond_has_a_kind() -> None:
    trace = build(
        op("aten::mm", 0, 10, **MM),
        launch(1, 1, corr=1),
        launch(3, 1, corr=2),
        op("aten::add", 20, 5, **ADD),
        launch(21, 1, corr=3),
        op("aten::odd", 30, 5, **ADD),
        launch(31, 1, corr=4),
        op("aten::bare", 40, 5),
        launch(41, 1, corr=5),
        launch(50, 1, corr=6),
        kernel("gemm_s1688_tf32", 100, 10, corr=1),
        kernel("splitk_reduce", 110, 2, corr=2),
        kernel("add", 120, 3, corr=3),
        kernel("odd", 130, 4, corr=4),
        kernel("bare", 140, 5, corr=5),
        kernel("replayed", 150, 6, corr=6),
        kernel("ncclDevKernel_AllReduce", 160, 7, corr=7),
    )
    ops = modelled_ops(trace)
    assert ops.unit_kind.tolist() == [
        TimeKind.MODELLED,
        TimeKind.MODELLED,
        TimeKind.MODELLED,
        TimeKind.NO_MODEL,
        TimeKind.NO_SHAPE,
        TimeKind.NO_OP,
        TimeKind.COMMUNICATION,
    ]
    assert ops.ns.tolist() == [12_000, 3_000]
    assert [ops.works[index].flops for index in ops.work.tolist()] == [2 * 8 * 16 * 4, 0]
    assert ops.tf32.tolist() == [True, False]
    assert ops.unit_ns.sum() == 37_000


def test_time_of_an_op_of_which_only_the_arguments_are_known_is_not_modelled() -> None:
    trace = build(op("aiter::mystery", 0, 10, **ADD), launch(1, 1, corr=1), kernel("mystery", 100, 10, corr=1))
    ops = modelled_ops(trace)
    assert (ops.unit_kind.tolist(), ops.unit_op.tolist()) == ([TimeKind.ARGUMENTS], [0])


def test_a_kernel_belongs_to_the_outermost_contraction_and_else_to_the_innermost_op() -> None:
    convolution = {
        "Input Dims": [[2, 3, 9, 9], [6, 3, 3, 3]],
        "Input type": ["float", "float"],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }
    trace = build(
        op("aten::convolution", 0, 20, **convolution),
        op("aten::mm", 5, 10, **MM),
        launch(6, 1, corr=1),
        op("aten::mul", 30, 20, **ADD),
        op("aten::add", 35, 10, **ADD),
        launch(36, 1, corr=2),
        kernel("gemm", 100, 10, corr=1),
        kernel("add", 120, 3, corr=2),
    )
    ops = modelled_ops(trace)
    assert [trace.events.text(row) for row in ops.row.tolist()] == ["aten::convolution", "aten::add"]


def test_what_autocast_casts_for_a_product_is_no_part_of_the_product() -> None:
    half = {"Input Dims": MM["Input Dims"], "Input type": ["c10::Half", "c10::Half"]}
    copied = {"Input Dims": [[8, 16], [8, 16]], "Input type": ["c10::Half", "float"]}
    trace = build(
        op("aten::mm", 0, 30, **MM),
        op("aten::copy_", 2, 8, **copied),
        launch(3, 1, corr=1),
        op("aten::mm", 12, 15, **half),
        launch(13, 1, corr=2),
        kernel("unrolled_elementwise", 100, 7, corr=1),
        kernel("gemm", 110, 10, corr=2),
    )
    ops = modelled_ops(trace)
    of_op = dict(zip([ops.works[index].flops for index in ops.work.tolist()], ops.ns.tolist(), strict=True))
    assert of_op == {2 * 8 * 16 * 4: 10_000, 0: 7_000}


def test_an_op_whose_kernel_never_ran_counts_nothing() -> None:
    trace = build(
        op("aten::mm", 0, 10, **MM),
        op("aten::mm", 20, 10, **MM),
        launch(21, 1, corr=1),
        kernel("gemm", 100, 10, corr=1),
    )
    assert len(modelled_ops(trace).row) == 1


def test_a_forward_op_inside_the_backward_pass_is_a_repetition() -> None:
    trace = build(
        op("aten::mm", 0, 10, **MM, **{"Sequence number": 1, "Fwd thread id": 0}),
        launch(1, 1, corr=1),
        op("autograd::engine::evaluate_function: CheckpointBackward", 20, 40, tid=AUTOGRAD),
        op("aten::mm", 22, 5, tid=AUTOGRAD, **MM, **{"Sequence number": 2, "Fwd thread id": 0}),
        launch(23, 1, corr=2, tid=AUTOGRAD),
        op("aten::mm", 30, 5, tid=AUTOGRAD, **MM),
        launch(31, 1, corr=3, tid=AUTOGRAD),
        kernel("gemm", 100, 10, corr=1),
        kernel("gemm", 120, 10, corr=2),
        kernel("gemm", 140, 10, corr=3),
    )
    assert modelled_ops(trace).repeats.tolist() == [False, True, False]


def test_without_a_device_the_self_time_of_cpu_ops_is_what_the_work_took() -> None:
    trace = build(op("aten::linear", 0, 20), op("aten::mm", 5, 10, **MM), op("aten::resolve_conj", 6, 2))
    ops = modelled_ops(trace)
    assert ops.ns.tolist() == [10_000]
    assert ops.unit_ns.sum() == 20_000
    assert ops.unit_kind.tolist() == [TimeKind.NO_SHAPE, TimeKind.MODELLED, TimeKind.MODELLED]


def test_old_convolutions_take_what_they_do_not_record_from_their_backward_op() -> None:
    forward = {"Input dims": [[2, 3, 9, 9], [6, 3, 3, 3]], "Input type": ["float", "float"], "Sequence number": 7}
    whole = {"Input dims": [[2, 3, 9, 9], [2, 6, 5, 5], [6, 3, 3, 3]], "Input type": ["float", "float", "float"]}
    part = {"Input dims": [[], [2, 6, 5, 5], [2, 3, 9, 9]], "Input type": ["GenericList", "float", "float"]}
    trace = build(
        op("aten::convolution", 0, 10, **forward, **{"Fwd thread id": 0}),
        launch(1, 1, corr=1),
        op("CudnnConvolutionBackward", 20, 40, tid=AUTOGRAD, **{"Sequence number": 7, "Fwd thread id": 1}),
        op("aten::cudnn_convolution_backward", 21, 30, tid=AUTOGRAD, **whole),
        op("aten::cudnn_convolution_backward_weight", 22, 20, tid=AUTOGRAD, **part),
        launch(23, 1, corr=2, tid=AUTOGRAD),
        kernel("forward", 100, 10, corr=1),
        kernel("wgrad", 120, 10, corr=2),
    )
    ops = modelled_ops(trace)
    assert [ops.works[index].flops for index in ops.work.tolist()] == [2 * 2 * 25 * 162] * 2


def capture() -> list[Event]:
    """Capture of a graph of three nodes: both kernels of one product, and one of an op without a model."""
    return [
        call("cudaStreamBeginCapture", 0, 1),
        op("aten::mm", 2, 10, **MM),
        launch(3, 1, corr=1),
        launch(5, 1, corr=2),
        op("aten::odd", 20, 5, **ADD),
        launch(21, 1, corr=3),
        call("cudaStreamEndCapture", 30, 1),
    ]


def replays() -> list[Event]:
    """Two replays of it, inside an op whose inputs say nothing of its work."""
    rows = [op("CompiledFunction", 95, 300, **ADD)]
    for start, corr in ((100, 10), (300, 11)):
        nodes = (("gemm", 0, 10), ("splitk", 20, 2), ("odd", 30, 4))
        rows += [call("cudaGraphLaunch", start, 5, corr)]
        rows += [kernel(name, start + 10 + begin, dur, corr) for name, begin, dur in nodes]
    return rows


@pytest.mark.parametrize("in_one_window", [True, False])
def test_each_replay_of_a_graph_does_the_work_that_was_captured_once(in_one_window: bool) -> None:
    trace = build(*capture(), *replays())
    if not in_one_window:
        trace = with_captured_graphs(build(*replays()), [build(*capture())])
    ops = modelled_ops(trace)
    assert ops.unit_kind.tolist() == [TimeKind.MODELLED, TimeKind.MODELLED, TimeKind.NO_MODEL] * 2
    assert ops.ns.tolist() == [12_000, 12_000]
    assert [ops.works[index].flops for index in ops.work.tolist()] == [2 * 8 * 16 * 4] * 2
    (row,) = rank_work(trace).rows
    assert (row.op, row.shapes, row.num, row.flops) == ("aten::mm", "[[8,16],[16,4]]", 2, 2 * 2 * 8 * 16 * 4)


def test_without_its_capture_a_replay_has_no_op_whatever_is_around_it() -> None:
    assert np.unique(modelled_ops(build(*replays())).unit_kind).tolist() == [TimeKind.NO_OP]
