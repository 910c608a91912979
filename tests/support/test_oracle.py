"""The oracle itself: six-line traces with exact numbers, and facts of the catalogue that were counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from oracle import answer
from oracle.reader import find_steps, make_event, read, to_ns
from paths import TRACES

MAIN, WORKER = 1, 2


def row(cat: str, name: str, start: float, end: float, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start, "dur": end - start, "args": args}


def step(start: float, end: float, number: int = 0) -> dict[str, Any]:
    return row("user_annotation", f"ProfilerStep#{number}", start, end)


def call(name: str, start: float, end: float, correlation: int = 0, tid: int = MAIN) -> dict[str, Any]:
    return row("cuda_runtime", name, start, end, tid, correlation=correlation)


def kernel(start: float, end: float, correlation: int, name: str = "gemm", stream: int = 7) -> dict[str, Any]:
    return row("kernel", name, start, end, stream, correlation=correlation, stream=stream, device=0)


def copy(start: float, end: float, correlation: int, kind: str = "DtoH (Device -> Pinned)") -> dict[str, Any]:
    args = {"correlation": correlation, "stream": 7, "device": 0, "bytes": 8}
    return row("gpu_memcpy", f"Memcpy {kind}", start, end, 7, **args)


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    def ask(*rows: dict[str, Any]) -> dict[str, Any]:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": rows}))
        return answer(path)

    return ask


def cells(result: dict[str, Any], window: int = 0) -> dict[tuple[str, str], int]:
    """The cells of one window in us."""
    return {cell: ns // 1000 for cell, ns in result["partition"][window].items()}


def test_a_copy_and_the_synchronize_after_it_are_one_sync(ask: Any) -> None:
    result = ask(
        step(0, 100),
        call("cudaLaunchKernel", 10, 20, 1),
        kernel(30, 60, 1),
        call("cudaMemcpyAsync", 40, 45, 2),
        call("cudaStreamSynchronize", 45, 72),
        copy(60, 62, 2),
    )
    assert result["syncs"] == {"dtoh": {"num": 1, "bytes": 8, "blocked_ns": 32_000, "wait_ns": 22_000}}
    assert result["memcpy"] == {"DtoH": {"num": 1, "bytes": 8, "gpu_ns": 2_000}}
    assert cells(result) == {
        ("forward", "host_bound"): 20,
        ("forward", "launch_latency"): 10,
        ("forward", "compute"): 30,
        ("forward", "exposed_memcpy"): 2,
        ("forward", "tail"): 38,
    }


def test_a_synchronize_starves_the_device_until_it_returns(ask: Any) -> None:
    result = ask(
        step(0, 80),
        call("cudaLaunchKernel", 5, 8, 1),
        kernel(10, 20, 1),
        call("cudaDeviceSynchronize", 15, 40),
        call("cudaLaunchKernel", 50, 55, 2),
        kernel(58, 70, 2),
    )
    assert result["syncs"] == {"device": {"num": 1, "bytes": 0, "blocked_ns": 25_000, "wait_ns": 5_000}}
    assert cells(result) == {
        ("forward", "host_bound"): 8 + 15,
        ("forward", "launch_latency"): 2 + 3,
        ("forward", "compute"): 22,
        ("forward", "sync_wait"): 20,
        ("forward", "tail"): 10,
    }


def test_the_copy_that_a_call_waits_for_was_launched_and_waits_for_the_queue(ask: Any) -> None:
    result = ask(
        step(10, 60),
        call("cudaMemcpyAsync", 10, 12, 1),
        call("cudaStreamSynchronize", 12, 50),
        copy(30, 40, 1),
    )
    assert result["syncs"]["dtoh"]["wait_ns"] == 30_000
    assert cells(result) == {
        ("forward", "host_bound"): 2,
        ("forward", "launch_latency"): 18,
        ("forward", "exposed_memcpy"): 10,
        ("forward", "tail"): 20,
    }


def test_an_asynchronous_pinned_copy_and_the_profilers_own_synchronize_are_no_syncs(ask: Any) -> None:
    result = ask(
        step(0, 50),
        call("cudaMemcpyAsync", 0, 2, 1),
        call("cudaEventQuery", 3, 4),
        copy(10, 20, 1),
        call("cudaDeviceSynchronize", 60, 70),
    )
    assert result["syncs"] == {}


def test_an_allocation_waits_for_nothing_and_has_its_own_cell(ask: Any) -> None:
    result = ask(step(0, 50), call("cudaMalloc", 0, 30), call("cudaLaunchKernel", 32, 34, 1), kernel(40, 50, 1))
    assert result["syncs"] == {"alloc": {"num": 1, "bytes": 0, "blocked_ns": 30_000, "wait_ns": 0}}
    assert cells(result) == {
        ("forward", "alloc_wait"): 30,
        ("forward", "host_bound"): 4,
        ("forward", "launch_latency"): 6,
        ("forward", "compute"): 10,
    }


def test_a_launch_from_the_autograd_thread_belongs_to_the_phase_open_on_the_main_thread(ask: Any) -> None:
    result = ask(
        step(0, 100),
        row("user_annotation", "fwd", 0, 40),
        row("user_annotation", "bwd", 40, 100),
        row("user_annotation", "nccl:all_reduce", 50, 60, WORKER),
        call("cudaLaunchKernel", 52, 55, 1, WORKER),
        kernel(56, 80, 1),
    )
    assert result["phases"]["rule"] == "annotations"
    assert result["phases"]["rows"]["bwd"]["gpu_sum_ns"] == 24_000
    assert cells(result) == {
        ("fwd", "host_bound"): 40,
        ("bwd", "host_bound"): 15,
        ("bwd", "launch_latency"): 1,
        ("bwd", "compute"): 24,
        ("bwd", "tail"): 20,
    }


def test_without_annotations_the_backward_thread_is_known_by_its_ops(ask: Any) -> None:
    result = ask(
        step(0, 100),
        row("user_annotation", "Optimizer.step#SGD.step", 80, 90),
        row("cpu_op", "MulBackward0", 50, 60, WORKER),
        call("cudaLaunchKernel", 62, 64, 1, WORKER),
        kernel(66, 70, 1),
    )
    rows = result["phases"]["rows"]
    assert result["phases"]["rule"] == "structure"
    assert rows["backward"] == {
        "cpu_ns": 10_000,
        "gpu_busy_ns": 4_000,
        "gpu_sum_ns": 4_000,
        "num_kernels": 1,
        "num_gpu_ops": 1,
    }
    assert (rows["optimizer"]["cpu_ns"], rows["forward"]["cpu_ns"]) == (10_000, 50_000)


def test_windows_end_with_the_work_that_their_steps_launched(ask: Any) -> None:
    result = ask(
        step(0, 10, 4),
        step(10, 20, 5),
        kernel(0, 3, 99),
        call("cudaLaunchKernel", 5, 6, 1),
        kernel(12, 17, 1),
        call("cudaLaunchKernel", 15, 16, 2),
        kernel(18, 26, 2),
    )
    first, second = result["steps"]
    assert (first["start_ns"], first["end_ns"], second["end_ns"]) == (0, 17_000, 26_000)
    assert (first["partial"], second["partial"]) == (True, False)
    assert (first["lag_ns"], second["lag_ns"]) == (7_000, 6_000)
    assert cells(result, 0) == {
        ("before_window", "compute"): 3,
        ("forward", "host_bound"): 3,
        ("forward", "launch_latency"): 6,
        ("forward", "compute"): 5,
    }


def test_compute_hides_a_collective_and_the_earliest_start_names_the_phase(ask: Any) -> None:
    result = ask(
        step(0, 40),
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaLaunchKernel", 1, 2, 2),
        kernel(2, 30, 1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", stream=20),
        kernel(10, 20, 2),
    )
    assert cells(result) == {
        ("forward", "host_bound"): 1,
        ("forward", "launch_latency"): 1,
        ("forward", "exposed_comm"): 18,
        ("forward", "compute"): 10,
        ("forward", "tail"): 10,
    }


def test_collectives_are_named_by_their_metadata_and_a_wait_is_none(ask: Any) -> None:
    args = {"In msg nelems": 10, "Out msg nelems": 20, "dtype": "BFloat16"}
    result = ask(
        row("cpu_op", "record_param_comms", 0, 5, **{"Collective name": "_allgather_base"}, **args),
        row("cpu_op", "record_param_comms", 5, 6, **{"Collective name": "wait"}, **args),
        row("user_annotation", "nccl:_all_gather_base", 1, 4),
        row("cpu_op", "c10d::_allgather_base_", 0, 6),
    )["collectives"]
    assert (result["calls"], result["bytes"]) == ({"all_gather": 1}, {"all_gather": 40})


def test_on_gloo_the_op_that_was_called_names_the_collective(ask: Any) -> None:
    result = ask(
        step(0, 20),
        row("cpu_op", "c10d::_reduce_scatter_base_", 0, 5),
        row("cpu_op", "aten::mm", 8, 12),
        row("cpu_op", "aten::_local_scalar_dense", 9, 10),
        row("user_annotation", "gloo:all_reduce", 3, 10, WORKER),
        row("user_annotation", "enumerate(DataLoader)#Loader.__next__", 12, 15),
    )
    assert result["collectives"]["calls"] == {"reduce_scatter": 1}
    assert result["syncs"] == {"scalar": {"num": 1, "bytes": 0, "blocked_ns": 1_000, "wait_ns": 0}}
    assert cells(result) == {
        ("forward", "cpu_compute"): 4,
        ("forward", "exposed_comm"): 5,
        ("dataload", "dataload_wait"): 3,
        ("forward", "python"): 8,
    }


def test_times_keep_every_digit_of_an_epoch() -> None:
    assert to_ns("1695835543008415.123") == 1_695_835_543_008_415_123
    assert make_event(0, {"ts": 1, "dur": "1e17"}) is None
    assert make_event(0, {"ts": 1, "dur": -1}) is None
    assert make_event(0, {"ts": 1}) is None


def test_the_thread_with_the_most_steps_is_the_main_thread() -> None:
    rows = [step(0, 1), step(1, 2), step(0, 9) | {"tid": WORKER}]
    main, steps = find_steps([event for index, item in enumerate(rows) if (event := make_event(index, item))])
    assert (main, len(steps)) == (("9", "1"), 2)


# Facts of the catalogue


def real(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"no trace {name} beside this checkout")
    return path


@pytest.mark.slow
def test_ddp_backward_is_what_the_autograd_thread_launched() -> None:
    result = answer(real("ddp-a100/rank0.json.gz"))
    backward = result["phases"]["rows"]["## backward ##"]
    assert (backward["num_gpu_ops"], backward["num_kernels"]) == (2391, 1794)
    assert backward["gpu_sum_ns"] == 124_339_538  # the 124.34 ms are the sum; 7.7 ms of them overlap
    assert backward["gpu_busy_ns"] == 116_653_714
    assert result["collectives"]["calls"] == {"all_reduce": 15, "broadcast": 6}
    assert result["collectives"]["elements"]["all_reduce"] == 3 * 25_557_032


@pytest.mark.parametrize("rank", [0, *(pytest.param(rank, marks=pytest.mark.slow) for rank in range(1, 8))])
def test_nanogpt_has_as_many_gathers_as_scatters_and_no_copy_to_the_host(rank: int) -> None:
    result = answer(real(f"nanogpt-h100-8r/rank{rank}.json.gz"))
    assert result["collectives"]["calls"] == {"all_gather": 28, "reduce_scatter": 28}
    assert 76 <= result["collectives"]["num_kernels"] <= 84
    assert "DtoH" not in result["memcpy"]


def test_expert_parallel_reference_waits_for_twenty_of_thirty_copies() -> None:
    path = real("ep-moe-b200-ab/ref.json.gz")
    result = answer(path)
    assert result["memcpy"]["DtoH"]["num"] == 30
    assert {kind: row["num"] for kind, row in result["syncs"].items()} == {"dtoh": 20}
    assert sum(event.name == "cudaStreamSynchronize" for event in read(path).events) == 20
    assert result["collectives"]["calls"] == {"all_to_all": 30}


def test_expert_parallel_without_syncs_has_none() -> None:
    result = answer(real("ep-moe-b200-ab/syncless.json.gz"))
    assert result["syncs"] == {}
    assert result["collectives"]["calls"] == {"all_gather": 10}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["control-a100-rank3", "test-v100-rank1"])
def test_the_wait_of_a_pageable_copy_is_inside_the_copy_call(name: str) -> None:
    path = real(f"hta-diff/{name}.json.gz")
    sync = answer(path)["syncs"]["dtoh"]
    trace = read(path)
    calls = [trace.launches[op.row] for op in trace.device_ops if "DtoH" in op.name]
    assert sync["num"] == 60
    assert sum(call.end - call.start for call in calls) > 0.95 * sync["blocked_ns"]


def test_the_straggler_is_the_rank_that_does_not_wait_in_its_collectives() -> None:
    paths = [real(f"torchrec-v100-straggler-4r/rank{rank}.json.gz") for rank in range(4)]
    assert [answer(path)["collectives"]["gpu_ns"] // 10**7 for path in paths] == [306, 306, 3, 306]


@pytest.mark.slow
def test_a_starved_loop_shows_as_its_data_loader() -> None:
    result = answer(real("owlv2/h100.json.gz"))
    share = result["partition"][0]["dataload", "host_bound"] / result["steps"][0]["window_ns"]
    assert round(share, 2) == 0.51
