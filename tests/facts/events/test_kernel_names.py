"""Kernels' names for people, and those under which two traces are matched."""

from __future__ import annotations

import pytest

from traceq.facts.events.kernel_names import kernel_family, short_kernel, without_tunings
from traceq.short_texts import cut_apart

ELEMENTWISE = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
)
COPIES = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>(int)"
)
LISTS = "at::native::TensorListMetadata<1>, at::native::BinaryOpScalarFunctor<float, 1, 1, 0>"
FOREACH_ADD, DEVICE = "multi_tensor_apply_kernel<BinaryOpScalarFunctor plus>", "cutlass::device_kernel<{}>"
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
        (f"void at::native::multi_tensor_apply_kernel<{LISTS}, std::plus<float>, float>(int)", FOREACH_ADD),
        ("void cutlass::device_kernel<lib::fp8_acc::GemmKernel>(lib::Params)", DEVICE.format("fp8_acc::GemmKernel")),
        ("void cutlass::device_kernel<GemmKernel>(Params)", DEVICE.format("GemmKernel")),
        ("void gemm<128, __nv_fp8_e4m3, __nv_fp8_e5m2, float>(__nv_fp8_e4m3*)", "gemm<e4m3 e5m2>"),
        ("void gemm<128, __nv_fp8_e5m2, __nv_fp8_e5m2, float>(__nv_fp8_e5m2*)", "gemm<e5m2>"),
        (f"{MANGLED}12float_e5m2_tE", DEVICE.format("e5m2")),
        ("cutlass3x_sm90_gemm_e4m3_e5m2_f32_128x128", "cutlass3x_sm90_gemm_e4m3_e5m2_f32_128x128"),
        ("", ""),
    ],
)
def test_a_kernel_is_called_by_what_it_does(name: str, short: str) -> None:
    assert short_kernel(name) == short


def test_variants_of_a_kernel_are_one_family() -> None:
    assert {kernel_family(f"void gemm<{size}, true>(float*)") for size in (64, 128)} == {"gemm"}
    assert {kernel_family(f"nccl{kind}Kernel_AllReduce_RING_LL") for kind in ("Dev", "")} == {"nccl AllReduce"}
    assert kernel_family(MANGLED) == "cutlass::device_kernel"


def test_work_in_another_format_of_eight_bits_is_another_family() -> None:
    families = [kernel_family(f"void gemm<128, __nv_fp8_{operand}, float>(float*)") for operand in ("e4m3", "e5m2")]
    assert families == ["gemm<e4m3>", "gemm<e5m2>"]


def test_names_that_would_look_the_same_are_cut_before_their_difference() -> None:
    gemm = "cutlass3x_sm90_tensorop_s64x128x32gemm_{}_f32_bf16_bf16_128x128x128"
    names = [gemm.format("e4m3"), "volta_sgemm_128x64_nn_of_a_long_name", gemm.format("e5m2"), gemm.format("e4m3")]
    shown = ["cutlass3x_…e4m3_f32_bf16_bf16_1…", "volta_sgemm_128x64_nn_of_a_long…"]
    assert cut_apart(names, 32) == [*shown, "cutlass3x_…e5m2_f32_bf16_bf16_1…", shown[0]]
    assert cut_apart(names[:2], 32) == ["cutlass3x_sm90_tensorop_s64x128…", shown[1]]


def test_parameters_of_a_product_of_rocm_stay_where_they_alone_tell_it_from_another() -> None:
    first, second = (f"Cijk_Alik_Bljk_HHS_BH_MT128x256x32_MI{size}" for size in ("32x32", "16x16"))
    assert without_tunings([first, first, "x"]) == ["Cijk_Alik_Bljk…MT128x256x32"] * 2 + ["x"]
    assert without_tunings([first, second]) == [first, second]
