"""What the ranks say to each other: calls, the kernels that carry them, bytes and bandwidth."""

from __future__ import annotations

from typing import Any

import pytest
from builder import AUTOGRAD, Event, annotation, build, comms, kernel, launch, op, row, step, table, world

from traceq.analysis.collectives import StepRow, calls_words
from traceq.analysis.registry import analyze
from traceq.model import Run

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def collectives(*events: Event, **metadata: Any) -> list[dict[str, Any]]:
    return table(build(step(0, 200), *events, **metadata), "collectives")


def on_thread(*events: Event) -> list[Any]:
    """The host time of each row that people see."""
    (view,) = analyze(Run("", (build(step(0, 200), *events),)), "collectives").views
    index = [column.key for column in view.columns].index("host_ns")
    return [row[index] for row in view.rows]


def counts(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """(calls, kernels) by name."""
    return {one["name"]: (one["num"], one["num_kernels"]) for one in rows}


def carried(name: str, elements: tuple[int, int], *, dur: int = 20, **more: Any) -> tuple[Event, ...]:
    """A call, its launch and its kernel."""
    return comms(name, 10, 10, elements, **more), launch(12, 1, 1), kernel(ALL_REDUCE, 30, dur, 1)


def test_a_call_and_its_kernel_are_one_row() -> None:
    (row,) = collectives(*carried("allreduce", (1000, 1000), **{"Process Group Name": "default_pg"}))
    assert (row["name"], row["group"], row["group_size"], row["dtype"]) == (
        "all_reduce",
        "default_pg",
        4,
        "float32",
    )
    assert (row["num"], row["num_kernels"], row["bytes"]) == (1, 1, 4000)
    assert (row["gpu_ns"], row["exposed_ns"], row["phase"]) == (20_000, 20_000, "forward")


@pytest.mark.parametrize(
    ("shapes", "needs"), [({}, "record_shapes=True"), ({"Input Dims": [[8, 8]]}, "torch 2.2 or newer")]
)
def test_what_is_missing_of_bytes_is_said(shapes: dict[str, Any], needs: str) -> None:
    unsized = op("record_param_comms", 10, 10), launch(12, 1, 1), kernel(ALL_REDUCE, 30, 20, 1)
    ran = build(step(0, 200), op("aten::relu", 2, 2, **shapes), *unsized)
    (missing,) = analyze(Run("", (ran,)), "collectives").unknown
    assert (missing.what, missing.argument) == ("bytes of collectives", needs)


@pytest.mark.parametrize("beside", [(), carried("allreduce", (1000, 1000))], ids=["alone", "beside NCCL"])
def test_an_all_reduce_through_symmetric_memory_is_a_call_with_its_kernel(beside: tuple[Event, ...]) -> None:
    ran = (
        op("symm_mem::multimem_all_reduce_", 100, 10),
        launch(102, 2, 7),
        kernel("void multimem_all_reduce_kernel<c10::BFloat16, 16>(...)", 120, 20, 7),
    )
    rows = collectives(*beside, *ran)
    assert [(one["name"], one["num"], one["num_kernels"]) for one in rows] == [("all_reduce", 1, 1)] * len(rows)
    assert len(rows) == 1 + bool(beside)


def test_a_range_left_open_for_asynchronous_work_takes_the_thread_no_longer_than_its_op() -> None:
    issued = op("c10d::alltoall_base_", 10, 9), annotation("hccl:all_to_all", 15, 150)
    assert on_thread(*issued, op("aten::mm", 30, 100)) == [4_000]
    assert on_thread(annotation("hccl:all_to_all", 15, 150)) == [150_000]


@pytest.mark.parametrize(
    ("name", "elements", "algbw", "busbw"),
    [
        ("allreduce", (1000, 1000), 4.0, 4.0 * 2 * 3 / 4),
        ("_allgather_base", (250, 1000), 4.0, 4.0 * 3 / 4),
        ("_reduce_scatter_base", (1000, 250), 4.0, 4.0 * 3 / 4),
        ("alltoallv", (1000, 900), 4.0, 4.0 * 3 / 4),
        ("broadcast", (1000, 1000), 4.0, 4.0),
    ],
)
def test_bandwidth_is_that_of_nccl_tests(name: str, elements: tuple[int, int], algbw: float, busbw: float) -> None:
    """The larger side counts; 4,000 bytes in 1 us are 4 GB/s."""
    (row,) = collectives(*carried(name, elements, dur=1))
    assert (row["algbw_gbps"], row["busbw_gbps"]) == (algbw, busbw)


@pytest.mark.parametrize(
    ("dtype", "size"), [("Float", 4), ("BFloat16", 2), ("Half", 2), ("Long", 8), ("Byte", 1), ("Bool", 1)]
)
def test_bytes_are_elements_times_the_size_of_their_type(dtype: str, size: int) -> None:
    (row,) = collectives(*carried("allreduce", (1000, 1000), dtype=dtype))
    assert row["bytes"] == 1000 * size


def test_an_unknown_type_leaves_the_bytes_open_instead_of_zero() -> None:
    (row,) = collectives(*carried("allreduce", (1000, 1000), dtype="Float6"))
    assert (row["bytes"], row["algbw_gbps"], row["busbw_gbps"]) == (None, None, None)


@pytest.mark.parametrize("elements", ["many", None, [5], -4, 2**70, 1e30])
def test_a_count_that_is_none_is_unknown(elements: Any) -> None:
    (row,) = collectives(comms("allreduce", 10, 5, (elements, elements)))
    assert (row["num"], row["bytes"]) == (1, None)


@pytest.mark.parametrize("dims", [5, "x", [5], [["a"]], [[2, ["x"]]], [[2**40, 2**40]], [], [None], {"a": 1}])
def test_shapes_that_are_none_leave_the_bytes_open(dims: Any) -> None:
    (row,) = collectives(annotation("nccl:all_reduce", 10, 5, **{"Input Dims": dims, "Input type": ["float"]}))
    assert (row["num"], row["bytes"]) == (1, None)


def test_a_tensor_without_dimensions_is_one_number_and_other_arguments_are_none() -> None:
    shapes = {"Input Dims": [[], []], "Input type": ["float", "Scalar"]}
    (row,) = collectives(annotation("nccl:all_reduce", 10, 5, **shapes))
    assert row["bytes"] == 4


def test_waits_barriers_and_unnamed_rows_move_no_data() -> None:
    rows = collectives(
        comms("wait", 1, 1), comms("barrier", 3, 1), op("record_param_comms", 5, 1), comms("allreduce", 7, 1)
    )
    assert counts(rows) == {"all_reduce": (1, 0)}


def test_the_innermost_level_that_has_names_is_the_identity() -> None:
    stack = annotation("nccl:all_reduce", 10, 20), op("c10d::allreduce_", 5, 30)
    assert counts(collectives(*stack, comms("allreduce", 12, 10))) == {"all_reduce": (1, 0)}
    assert counts(collectives(*stack, op("record_param_comms", 12, 10))) == {"all_reduce": (1, 0)}
    assert counts(collectives(stack[1])) == {"all_reduce": (1, 0)}
    waited = stack[0], comms("wait", 40, 1)  # the waits alone are recorded: 19 collectives of a diff were none
    assert counts(collectives(*waited)) == {"all_reduce": (1, 0)}


def test_an_annotation_lists_what_it_moves_and_all_of_it_counts() -> None:
    shapes = {"Input Dims": [[10, 20], [50], []], "Input type": ["float", "float", ""]}
    (row,) = collectives(annotation("nccl:all_reduce_coalesced", 10, 20, **shapes))
    assert (row["name"], row["bytes"], row["dtype"]) == ("all_reduce", 1000, "float32")


def test_a_c10d_op_lists_output_and_input_and_the_larger_counts() -> None:
    shapes = {"Input Dims": [[1000], [250], []], "Input type": ["float", "float", ""]}
    (row,) = collectives(op("c10d::_allgather_base_", 10, 5, **shapes))
    assert (row["name"], row["bytes"]) == ("all_gather", 4000)


GLOO = (
    annotation("gloo:all_reduce", 20, 30, tid=9, **{"Input Dims": [[64]], "Input type": ["float"]}),
    annotation("gloo:all_gather", 60, 30, tid=9, **{"Input Dims": [[64]], "Input type": ["float"]}),
)
DISPATCHED = (op("c10d::_reduce_scatter_base_", 10, 5), op("c10d::_allgather_base_", 55, 5))


def test_gloo_calls_a_reduce_scatter_all_reduce_and_the_c10d_op_tells_the_truth() -> None:
    job = world(0, 2, "gloo")
    job["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_size": 2}]
    rows = collectives(*GLOO, *DISPATCHED, **job)
    assert counts(rows) == {"reduce_scatter": (1, 0), "all_gather": (1, 0)}
    assert {one["name"]: one["bytes"] for one in rows} == {"reduce_scatter": 256, "all_gather": 512}  # of 2 ranks


def test_where_the_counts_differ_gloos_own_names_stand() -> None:
    assert counts(collectives(*GLOO, DISPATCHED[0], **world(0, 2, "gloo"))) == {
        "all_reduce": (1, 0),
        "all_gather": (1, 0),
    }


def test_a_kernel_without_a_call_is_a_row_of_its_own() -> None:
    calls = carried("allreduce", (1000, 1000))
    rows = collectives(kernel("ncclDevKernel_AllGather_RING_LL(x)", 2, 5), *calls)
    assert counts(rows) == {"all_gather": (0, 1), "all_reduce": (1, 1)}
    alone = next(one for one in rows if one["num"] == 0)
    assert (alone["phase"], alone["bytes"], alone["gpu_ns"]) == ("before_window", None, 5_000)
    assert alone["key"] != next(one["key"] for one in rows if one["num"])


def test_calls_and_kernels_that_do_not_belong_together_are_not_one_row() -> None:
    apart = annotation("nccl:all_reduce", 10, 5), launch(50, 1, 1, tid=9), kernel(ALL_REDUCE, 60, 9, 1)
    rows = collectives(*apart)
    assert [(one["name"], one["num"], one["num_kernels"]) for one in rows] == [
        ("all_reduce", 1, 0),
        ("all_reduce", 0, 1),
    ]
    assert rows[0]["key"] != rows[1]["key"]


def test_a_group_launch_has_more_calls_than_kernels() -> None:
    rows = collectives(
        comms("allreduce", 1, 5, (10, 10)),
        comms("allreduce", 10, 5, (30, 30)),
        launch(12, 1, 1),
        kernel(ALL_REDUCE, 30, 9, 1),
    )
    assert counts(rows) == {"all_reduce": (2, 1)}
    assert rows[0]["bytes"] == 160


def test_a_kernel_launched_elsewhere_finds_its_call_by_external_id() -> None:
    call = comms("allreduce", 10, 5, (10, 10), **{"External id": 41})
    rows = collectives(call, launch(50, 1, 1, tid=AUTOGRAD), kernel(ALL_REDUCE, 60, 9, 1, **{"External id": 41}))
    assert counts(rows) == {"all_reduce": (1, 1)}


@pytest.mark.parametrize(
    "name", ["cross_device_reduce_1stage<float>(x)", "ncclKernel_AllReduce_RING_LL_Sum_float(x)", "rcclGenericKernel"]
)
def test_a_kernel_is_communication_by_its_name_on_any_stream(name: str) -> None:
    (row,) = collectives(launch(1, 1, 1), kernel(name, 5, 9, 1, stream=7))
    assert row["num_kernels"] == 1


def test_a_generic_kernel_is_what_its_own_arguments_say() -> None:
    generic = kernel("ncclDevKernel_Generic(x)", 5, 9, 1, **{"Collective name": "alltoallv"})
    assert counts(collectives(launch(1, 1, 1), generic)) == {"all_to_all": (0, 1)}


def test_only_the_part_that_no_compute_hides_is_exposed() -> None:
    compute = launch(0, 1, 2), kernel("gemm", 25, 15, 2, stream=8)
    (row,) = collectives(*carried("allreduce", (10, 10)), *compute)
    assert (row["gpu_ns"], row["exposed_ns"]) == (20_000, 10_000)


def test_backward_calls_stand_in_a_row_apart_from_forward_calls() -> None:
    engine = op("autograd::engine::evaluate_function: MmBackward0", 90, 30, tid=AUTOGRAD)
    rows = collectives(comms("allreduce", 10, 5, (10, 10)), engine, comms("allreduce", 95, 5, (20, 20), tid=AUTOGRAD))
    assert {one["phase"]: one["bytes"] for one in rows} == {"forward": 40, "backward": 80}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("alltoall_base", "all_to_all"),
        ("broadcast", "broadcast"),
        ("send", "send"),
        ("recvAnySource", "recv"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("reduce", "reduce"),
        ("mystery", "unknown"),
    ],
)
def test_every_spelling_has_one_name(written: str, name: str) -> None:
    assert counts(collectives(comms(written, 10, 5))) == {name: (1, 0)}


def test_a_rank_of_one_calls_and_needs_no_kernel() -> None:
    (row,) = collectives(comms("allreduce", 10, 5, (10, 10), **{"Group size": 1}))
    assert (row["num"], row["num_kernels"], row["gpu_ns"], row["algbw_gbps"]) == (1, 0, 0, None)


def test_a_sync_row_of_the_profiler_is_no_kernel() -> None:
    assert collectives(row("cuda_sync", "nccl wait", 5, 9, stream=7)) == []


def test_a_step_has_all_calls_of_a_name_whatever_they_are_for() -> None:
    """Of five all_to_all in a step, two were in a row of the first screen, and the row of the others was left out."""

    def calls(rank: int, number: int, name: str, num: int) -> StepRow:
        return StepRow(0, rank, number, name, "", num, num, None, 0, 0)

    kinds = {
        ("all_to_all", "activations"): [calls(0, 1, "all_to_all", 2), calls(0, 2, "all_to_all", 2)],
        ("all_to_all", "unknown"): [calls(0, 1, "all_to_all", 3), calls(0, 2, "all_to_all", 3)],
        ("all_reduce", "gradients"): [calls(0, 1, "all_reduce", 4)],
    }
    assert calls_words(kinds, 2) == "5 all_to_all, 0 or 4 all_reduce"
