"""Kernels' names for people, and those under which two traces are matched."""

from __future__ import annotations

import pytest

from traceq.facts.events.kernel_names import kernel_family, short_kernel

ELEMENTWISE = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
)
COPIES = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>(int)"
)
MANGLED = "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm10INS_4gemm6kernel13GemmUniversalE"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ELEMENTWISE, "elementwise_kernel<MulFunctor>"),
        (COPIES, "unrolled_elementwise_kernel<direct_copy_kernel_cuda>"),
        (
            "void at::native::reduce_kernel<512, at::native::ReduceOp<float, MeanOps<float> > >(R)",
            "reduce_kernel<MeanOps>",
        ),
        ("void cudnn::bn_fw_tr_1C11_kernel<float, float, int, 128, true>(Tensor, int)", "cudnn::bn_fw_tr_1C11_kernel"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 9, false>(float*)", "softmax_warp_forward"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllGather_RING_LL"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        (MANGLED, "cutlass::device_kernel"),
        ("", ""),
    ],
)
def test_a_kernel_is_called_by_what_it_does(name: str, short: str) -> None:
    assert short_kernel(name) == short


def test_variants_of_a_kernel_are_one_family() -> None:
    assert {kernel_family(f"void gemm<{size}, true>(float*)") for size in (64, 128)} == {"gemm"}
    assert {kernel_family(f"nccl{kind}Kernel_AllReduce_RING_LL") for kind in ("Dev", "")} == {"nccl AllReduce"}
    assert kernel_family(MANGLED) == "cutlass::device_kernel"
