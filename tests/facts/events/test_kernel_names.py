"""Kernels' names for people, and those under which two traces are matched."""

from __future__ import annotations

import pytest
from builder import build, kernel, launch, op

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import (
    CopyTypes,
    copy_types,
    kernel_family,
    kernel_labels,
    short_kernel,
    without_tunings,
)
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
DEVICE = "cutlass::device_kernel<{}>"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(%s)#1}"
STRIDED = f"void at::native::elementwise_kernel<128, 4, %s<at::native::direct_copy_kernel_cuda{LAMBDA}> >(int)"
LOADED = f"void unrolled_elementwise_kernel<direct_copy_kernel_cuda{LAMBDA}, at::native::memory::LoadWithCast<1>>(int)"
CONTIGUOUS = f"void at::native::vectorized_elementwise_kernel<4, at::native::%s_copy_kernel_cuda{LAMBDA}>(int)"
CUT = "void at::native::unrolled_elementwise_kernel<at::native::dir"
MANGLED = "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm10INS_4gemm6kernel13GemmUniversalE"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ELEMENTWISE, "mul"),
        (COPIES, "copy"),
        (
            "void at::native::reduce_kernel<512, at::native::ReduceOp<float, MeanOps<float> > >(R)",
            "reduce mean",
        ),
        ("void cudnn::bn_fw_tr_1C11_kernel<float, float, int, 128, true>(Tensor, int)", "cudnn::bn_fw_tr_1C11_kernel"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 9, false>(float*)", "softmax_warp_forward"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllGather_RING_LL"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        (MANGLED, DEVICE.format("GemmUniversal")),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_", "aiter::add_rmsnorm_quant_kernel"),
        (f"void at::native::multi_tensor_apply_kernel<{LISTS}, std::plus<float>, float>(int)", "foreach add"),
        ("void cutlass::device_kernel<lib::fp8_acc::GemmKernel>(lib::Params)", DEVICE.format("fp8_acc::GemmKernel")),
        ("void cutlass::device_kernel<GemmKernel>(Params)", DEVICE.format("GemmKernel")),
        ("void gemm<128, __nv_fp8_e4m3, __nv_fp8_e5m2, float>(__nv_fp8_e4m3*)", "gemm<e4m3 e5m2>"),
        ("void gemm<128, __nv_fp8_e5m2, __nv_fp8_e5m2, float>(__nv_fp8_e5m2*)", "gemm<e5m2>"),
        (f"{MANGLED}12float_e5m2_tE", DEVICE.format("GemmUniversal e5m2")),
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


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        (STRIDED % ("gpu_kernel_impl_nocast", "c10::BFloat16"), ("bf16", "bf16", False)),
        (STRIDED % ("gpu_kernel_impl", "float"), ("", "fp32", False)),  # in old versions of torch no cast, too
        (LOADED % "bool", ("", "bool", True)),
        (CONTIGUOUS % ("direct", "long"), ("int64", "int64", False)),
        (CONTIGUOUS % ("bfloat16", "float"), ("fp32", "bf16", True)),
        (CONTIGUOUS % ("bfloat16tofloat32", "c10::BFloat16"), ("bf16", "fp32", True)),
        (CUT, None),
        (ELEMENTWISE, None),
    ],
)
def test_the_name_of_a_copy_tells_some_of_its_types(name: str, copied: tuple[str, str, bool] | None) -> None:
    assert copy_types(name) == copied


def test_the_op_of_a_copy_tells_its_types_where_they_are_recorded() -> None:
    half, whole = ["c10::Half", "float", "Scalar"], ["float", "float", "Scalar"]
    trace = build(
        op("aten::copy_", 0, 10, **{"Input type": half, "Input Dims": [[8], [8], []]}),
        launch(1, 2, corr=1),
        kernel(COPIES, 20, 30, corr=1),
        op("aten::copy_", 10, 10, **{"Input type": whole, "Input Dims": [[8], [8], []]}),
        launch(11, 2, corr=2),
        kernel(CUT, 50, 30, corr=2),
        kernel(COPIES, 80, 30),
    )
    labels = kernel_labels(trace)
    assert [labels.names[label] for label in labels.label.tolist()] == ["copy fp32->fp16", "copy fp32", "copy"]
    assert labels.copies[labels.label[0]] == CopyTypes("fp32", "fp16", is_cast=True)
    assert len(labels.label) == len(device_work(trace))


def test_what_a_cut_name_does_is_told_by_its_op() -> None:
    assert short_kernel("void at::native::reduce_kernel<512, 1, at::native::Red", "aten::sum") == "reduce sum"
    assert short_kernel(CUT, "aten::add_") == "add"
    assert short_kernel(CUT) == "unrolled_elementwise_kernel"
    assert short_kernel(CUT, "CompiledFunction") == "unrolled_elementwise_kernel"


def test_a_template_that_returns_void_by_a_condition_is_named_by_its_function() -> None:
    """A product of a matrix and a vector had 12.9 % of a decode, and 82 % of another one, as `enable_if`."""
    name = "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float>(int)"
    assert (kernel_family(name), short_kernel(name)) == ("internal::gemvx::kernel", "internal::gemvx::kernel")
