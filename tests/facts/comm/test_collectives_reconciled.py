"""Calls, annotations and kernels are joined by what they are: each way to carry out a collective, in exact numbers."""

from __future__ import annotations

from typing import Any

import pytest
from builder import Event, annotation, build, call, comms, kernel, launch, memcpy, op, step, table, world

Row = dict[str, Any]
TEN = (1000, 1000)


def collectives(*events: Event, **metadata: Any) -> list[Row]:
    return table(build(step(0, 200), *events, **metadata), "collectives")


def counts(result: list[Row]) -> list[tuple[str, int, int, int, int]]:
    """(name, calls, kernels, copies, GPU us) of each row."""
    return [(r["name"], r["num"], r["num_kernels"], r["num_copies"], r["gpu_ns"] // 1000) for r in result]


def stack(name: str, recorded: str, position: int, corr: int, **more: Any) -> list[Event]:
    """What torch writes for one call: the op, its record, the annotation, the launch; all one call."""
    return [
        op(f"c10d::{name}_", position, 9, **more),
        comms(recorded, position + 1, 7, TEN, **more),
        annotation(f"nccl:{name}", position + 2, 5, **more),
        launch(position + 3, 1, corr),
    ]


def test_an_op_its_record_its_annotation_and_its_kernel_are_one_call() -> None:
    one = [*stack("allreduce", "allreduce", 10, 1), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 30, 20, 1)]
    assert counts(collectives(*one)) == [("all_reduce", 1, 1, 0, 20)]


@pytest.mark.parametrize(
    "kernel_name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymDevKernel_AllReduce_AGxLL_R(ncclSymDevArgs)",
        "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC(ncclSymkDevWorkArgs)",
        "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)",
        "void vllm::cross_device_reduce_2stage<half, 4>(x)",
        "rcclGenericOpKernel(ncclDevComm*)",
    ],
)
@pytest.mark.parametrize("stream", [7, 20])
def test_a_kernel_is_its_calls_whatever_it_is_called_and_on_any_stream(kernel_name: str, stream: int) -> None:
    one = [*stack("allreduce", "allreduce", 10, 1), kernel(kernel_name, 30, 20, 1, stream=stream)]
    assert counts(collectives(*one)) == [("all_reduce", 1, 1, 0, 20)]


@pytest.mark.parametrize(
    ("kernel_name", "collective"),
    [
        ("void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16**)", "all_reduce"),
        ("_ZN4c10d12_GLOBAL__N_126one_shot_all_reduce_kernelIN3c108BFloat16ELi16EEEvPPT_", "all_reduce"),
        ("void c10d::(anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)", "all_reduce"),
        ("void c10d::multimem_one_shot_all_reduce_kernel<float, 16>(float*, float*)", "all_reduce"),
        ("multimem_all_gather_kernel<16>(char*, char*)", "all_gather"),
        ("multimem_reduce_scatter_kernel", "reduce_scatter"),
        ("all_gather_into_symm_mem_kernel", "all_gather"),
        ("c10d::nvshmem_extension::allToAllV(void*, void*, long*)", "all_to_all"),
        ("nvshmemi_broadcast_kernel(int)", "broadcast"),
        ("void barrier_on_stream_kernel_nvshmem_threadgroup()", None),
        ("nvshmem_barrier_all_kernel()", "unknown"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "all_to_all"),
        ("void deep_ep::internode_ll::combine<true, 7168, 11, 9>(void*)", "all_to_all"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "all_to_all"),
        ("ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs)", "all_gather"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32>(long const*)", None),
        ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)", "all_to_all"),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*)", "all_to_all"),
        ("void dpsk::ep::internode::cached_notify<false>(int, int, int)", "all_to_all"),
        ("void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*)", "all_to_all"),
        ("void dpsk::ep::internode_ll::dispatch_ll<true, 3, 10>(void*)", "all_to_all"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)", None),
        ("void cdpsk::ep::CUB_200101_900_NS::DeviceScanKernel<int>(int*)", None),
        ("void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*)", None),
        ("void a2a_dispatch_send_kernel<true, 16>(unsigned long)", "all_to_all"),
        ("a2a_kernels::a2a_combine_recv_kernel<bf16>(unsigned long)", "all_to_all"),
        ("EpDispatchInterNodeV1KernelLowLatency", "all_to_all"),
        ("void mori::moe::EpCombineIntraNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)", "all_to_all"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>(int const*)", "all_to_all"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(P)", "all_reduce"),
        ("mori::moe::EpDispatchCopyToStaging", "all_to_all"),
        ("mori::moe::EpCombineAll", "all_to_all"),
        ("_mxfp8_all_to_all_expert_major_kernel", "all_to_all"),
        ("_combine_all_to_all_kernel", "all_to_all"),
        ("void flashinfer::trtllm_alltoall::moeAllToAllKernel<1>(P)", "all_to_all"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, float>(P)", "all_reduce"),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<__nv_bfloat16, 8>(P)", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>(P)", "all_reduce"),
        ("all_to_all_gmm_kernel", None),
        ("void cutlass::device_kernel<deep_ep::dispatch>(P)", None),
        ("void moe::dispatch_kernel<8>(x)", None),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)", None),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8>(x)", None),
        ("vectorized_gather_kernel", None),
        ("multi_tensor_apply_kernel", None),
        ("gemm<multimem_epilogue, nvshmem_team>(x)", None),
        ("gemm_multimem_all_reduce_epilogue", None),
        ("all_gather_matmul_prologue", None),
        ("symmetric_quantize_kernel", None),
        ("triton_red_fused_one_shot_0", None),
    ],
)
def test_kernels_of_symmetric_memory_and_of_other_libraries_are_told_by_name(
    kernel_name: str, collective: str | None
) -> None:
    result = collectives(launch(10, 1, 1), kernel(kernel_name, 30, 20, 1))
    assert counts(result) == ([(collective, 0, 1, 0, 20)] if collective else [])


def test_a_kernel_of_another_kind_than_its_call_is_still_its_calls() -> None:
    """The name is that of a representative kernel: a small reduce-scatter can run as a Generic or an AllReduce."""
    kernels = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 30, 20, 1)
    result = collectives(*stack("_reduce_scatter_base", "_reduce_scatter_base", 10, 1), kernels)
    assert counts(result) == [("reduce_scatter", 1, 1, 0, 20)]


def test_a_group_fused_into_one_kernel_keeps_its_calls_and_bytes() -> None:
    calls = [e for n in range(3) for e in (comms("_allgather_base", 10 + 4 * n, 3, TEN),)]
    end = annotation("nccl:coalesced", 22, 8), launch(24, 1, 1)
    result = collectives(*calls, *end, kernel("ncclDevKernel_AllGather_RING_LL(x)", 40, 20, 1))
    assert counts(result) == [("all_gather", 3, 1, 0, 20)]
    assert (result[0]["bytes"], result[0]["algbw_gbps"]) == (12_000, 12_000 / 20_000)


def test_one_call_for_several_tensors_is_one_call() -> None:
    call_ = comms("allgather_into_tensor_coalesced", 10, 10, (500, 1000))
    result = collectives(call_, launch(12, 1, 1), kernel("ncclDevKernel_AllGather_RING_LL(x)", 40, 20, 1))
    assert counts(result) == [("all_gather", 1, 1, 0, 20)]


def test_a_launch_that_no_group_encloses_belongs_to_no_call() -> None:
    result = collectives(
        comms("allreduce", 10, 3, TEN), launch(24, 1, 1), kernel("ncclDevKernel_AllReduce(x)", 40, 20, 1)
    )
    assert sorted(counts(result)) == [("all_reduce", 0, 1, 0, 20), ("all_reduce", 1, 0, 0, 0)]


@pytest.mark.parametrize(
    ("name", "between", "is_linked"),
    [
        ("ncclBroadcastRing", (), True),
        ("ncclAllReduceRing", (), False),
        ("ncclBroadcastRing", (launch(15, 1, 2),), False),
    ],
)
def test_a_range_that_ends_before_its_kernel_is_launched_is_of_that_kernel(
    name: str, between: tuple[Event, ...], is_linked: bool
) -> None:
    """Of each step of a job of torch 1.8 two broadcasts were two rows: calls without time, kernels without calls."""
    other = kernel("add", 18, 2, 2) if between else kernel("add", 8, 2, 2)
    rows = annotation("nccl:broadcast", 10, 3), *between, other, launch(24, 1, 1), kernel(name, 40, 20, 1)
    assert (("broadcast", 1, 1, 0, 20) in counts(collectives(*rows))) == is_linked


def test_copy_engines_carry_a_call_that_launches_no_kernel() -> None:
    """Four peers, four copies: 40 us of copies, of which a kernel hides 5."""
    copies = [memcpy("DtoD (Device -> Device)", 30 + 10 * n, 10, 1 + n, size=1000) for n in range(4)]
    issued = [call("cudaMemcpyAsync", 12 + n, 1, 1 + n) for n in range(4)]
    compute = launch(20, 1, 9), kernel("gemm", 65, 10, 9, stream=8)
    result = collectives(comms("_allgather_base", 10, 8, (250, 1000)), *issued, *copies, *compute)
    assert counts(result) == [("all_gather", 1, 0, 4, 40)]
    assert (result[0]["exposed_ns"], result[0]["algbw_gbps"]) == (35_000, 0.1)


def test_copies_beside_a_kernel_are_none_of_the_call() -> None:
    """An all-gather into a list copies its parts out after the kernel."""
    parts = [call("cudaMemcpyAsync", 14, 1, 2), memcpy("DtoD (Device -> Device)", 60, 10, 2)]
    result = collectives(
        *stack("allgather", "allgather", 10, 1), kernel("ncclDevKernel_AllGather_RING_LL(x)", 30, 20, 1), *parts
    )
    assert counts(result) == [("all_gather", 1, 1, 0, 20)]


def test_a_world_of_one_rank_calls_and_runs_no_kernel() -> None:
    alone = {"Group size": 1}
    result = collectives(
        comms("allreduce", 10, 5, TEN, **alone), launch(30, 1, 1), kernel("gemm", 40, 9, 1), **world(0, 1)
    )
    assert counts(result) == [("all_reduce", 1, 0, 0, 0)]
    assert (result[0]["group_size"], result[0]["algbw_gbps"]) == (1, None)


def test_a_barrier_is_no_call_and_its_kernel_is_shown_without_one() -> None:
    barrier = (
        comms("barrier", 10, 10),
        launch(12, 1, 1),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 30, 20, 1),
    )
    assert counts(collectives(*barrier)) == [("all_reduce", 0, 1, 0, 20)]


def test_a_captured_graph_runs_kernels_whose_calls_lie_before_the_trace() -> None:
    graph = call("cudaGraphLaunch", 10, 5, 1)
    kernels = [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 30 + 30 * n, 20, 1) for n in range(2)]
    assert counts(collectives(graph, *kernels)) == [("all_reduce", 0, 2, 0, 40)]
