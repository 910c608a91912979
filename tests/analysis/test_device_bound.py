"""What limits a step in which a device or a CPU computes all the time: its kernels or ops, by name."""

from __future__ import annotations

import pytest
from builder import Event, build, call, frame, kernel, launch, op, step

from traceq.analysis.registry import analyze
from traceq.model import Run
from traceq.report import Finding

SGEMM, TF32 = "ampere_sgemm_128x64_tn", "cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int)"


def findings(*kernels: tuple[str, str, int], device: str = "") -> list[Finding]:
    """Those of a step of 1,000 us in which kernels (name, op, us) run one after the other from 20 us."""
    rows: list[Event] = [step(0, 1000)]
    start = 20
    for number, (name, around, us) in enumerate(kernels, 1):
        rows += [op(around, 2 * number, 2), launch(2 * number, 1, number), kernel(name, start, us, number)]
        start += us
    properties = {"deviceProperties": [{"id": 0, "name": device}]} if device else {}
    return list(analyze(Run("", (build(*rows, **properties),)), "partition").findings)


def test_a_step_that_computes_all_the_time_says_in_what() -> None:
    (finding,) = findings((SGEMM, "aten::mm", 300), (TF32, "aten::mm", 300), (MUL, "aten::mul", 330), ("tiny", "x", 20))
    assert (finding.code, finding.ns) == ("device_bound", 950_000)
    assert "device-bound, 950 us per step (95.0 %) in this one traced step: only less or faster work" in finding.text
    named = f"mul of aten::mul 33.0 %, {SGEMM} of aten::mm 30.0 %, cutlass_80_"
    assert f"; longest: {named}" in finding.text
    assert "tiny" not in finding.text


def test_steps_of_very_unlike_length_give_their_range() -> None:
    """Their mean, 1,900 us, is none of any step."""
    rows: list[Event] = [step(0, 1000, 1), step(1000, 3000, 2), op("aten::mm", 0, 950), op("aten::mm", 1000, 2850)]
    (finding,) = analyze(Run("", (build(*rows),)), "partition").findings
    assert finding.text.startswith("in ops on the CPU, 1.90 ms per step (95.0 %; 950 us to 2.85 ms by step) in these 2")


def test_a_kernel_of_several_ops_has_none() -> None:
    (finding,) = findings((SGEMM, "aten::mm", 450), (SGEMM, "aten::addmm", 450))
    assert f"longest: {SGEMM} 90.0 %;" in finding.text


@pytest.mark.parametrize(
    ("name", "is_float32"),
    [
        (SGEMM, True),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)", True),
        ("void cudnn::cnn::wgrad_alg1_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", True),
        ("void cudnn::cnn::wgrad_alg1_engine<__half, 512, 6, 5, 3, 3, 3, false>(int)", False),
        ("void explicit_convolve_sgemm<float, int, 1024, 6, 7, 3>(int)", True),
        ("volta_scudnn_128x32_relu_interior_nn_v1", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>(int)", True),
        ("maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt", True),
        (TF32, False),
        ("ampere_fp16_s16816gemm_fp16_128x64_tn", False),
    ],
)
def test_products_without_tensor_cores_are_told_by_their_names(name: str, is_float32: bool) -> None:
    """The other kernel is one for devices that have Tensor Cores."""
    (finding,) = findings((name, "aten::mm", 200), ("ampere_fp16_s16816gemm_fp16_128x64_tn", "x", 700))
    assert ("; 20.0 % is float32 products that use no Tensor Cores: try autocast" in finding.text) == is_float32


@pytest.mark.parametrize(
    ("device", "remedy"),
    [
        ("Tesla T4", "try autocast"),
        ("NVIDIA A100-SXM4-40GB", "try autocast, or TF32"),
        ("NVIDIA GeForce RTX 3060", ""),  # not known to have Tensor Cores, and this kernel runs on any device
    ],
)
def test_a_remedy_is_one_that_the_device_has(device: str, remedy: str) -> None:
    (finding,) = findings(("maxwell_scudnn_winograd", "aten::convolution", 900), device=device)
    because = "; 90.0 % is float32 products that use no Tensor Cores: "
    assert finding.text.endswith(f"{because}{remedy}" if remedy else " of aten::convolution 90.0 %")


def test_elementwise_kernels_are_told_from_a_fifth_of_the_compute_time() -> None:
    (finding,) = findings((MUL, "aten::mul", 250), ("gemm", "aten::mm", 700))
    assert "; 25.0 % is elementwise kernels, which torch.compile can fuse" in finding.text
    for kernels in ((MUL, "aten::mul", 150), ("gemm", "aten::mm", 800)), ((MUL, "Torch-Compiled Region: 0/0", 900),):
        (finding,) = findings(*kernels)
        assert "elementwise kernels" not in finding.text


def test_many_short_kernels_are_not_named() -> None:
    (finding,) = findings(*((f"kernel{number}", "x", 30) for number in range(30)))
    assert finding.text.endswith("saves much")


def test_a_step_that_loses_time_elsewhere_is_not_device_bound() -> None:
    assert [each.code for each in findings(("gemm", "aten::mm", 800))] == []  # 80 %
    rows = [step(0, 1000), launch(0, 1, 1), kernel("gemm", 2, 870, 1), launch(985, 1, 2), kernel("gemm", 990, 5, 2)]
    assert "device_bound" not in [each.code for each in analyze(Run("", (build(*rows),)), "partition").findings]


def test_a_cpu_that_runs_ops_all_the_time_says_which() -> None:
    ops = op("aten::conv2d", 0, 700), op("aten::_slow_conv2d_forward", 10, 600), op("aten::relu", 700, 250)
    (finding,) = analyze(Run("", (build(step(0, 1000), *ops),)), "partition").findings
    assert (finding.code, finding.ns) == ("cpu_bound", 950_000)
    assert finding.text == (
        "in ops on the CPU, 950 us per step (95.0 %) in this one traced step: only less or faster work there saves "
        "much; longest: aten::_slow_conv2d_forward 60.0 %, aten::relu 25.0 %, aten::conv2d 10.0 %; 60.0 % is "
        "convolutions as products of the unfolded input, as where oneDNN is missing or disabled"
    )


def test_what_an_autograd_function_runs_itself_is_python() -> None:
    """The backward of an adjoint method is a solver in Python; a backward of torch's own has a number."""
    forward, backward = op("OdeintAdjointMethod", 0, 300), op("OdeintAdjointMethodBackward", 300, 600)
    text = on_a_cpu(forward, op("aten::mm", 10, 200), backward, op("MmBackward0", 310, 200))[0]
    assert "; 50.0 % is own time of autograd functions in Python, between the ops that they call or in" in text
    assert "autograd functions" not in "".join(on_a_cpu(op("CompiledFunction", 0, 300), op("MmBackward0", 300, 600)))


def on_a_cpu(*events: Event) -> list[str]:
    return [each.text for each in analyze(Run("", (build(step(0, 1000), *events),)), "partition").findings]


def test_one_op_that_takes_half_of_a_step_on_a_cpu_is_told_with_its_line() -> None:
    assert on_a_cpu(op("aten::index_add_", 0, 600), op("aten::relu", 700, 100)) == [
        (
            "in ops on the CPU, 700 us per step (70.0 %) in this one traced step: longest: aten::index_add_ 60.0 %, "
            "aten::relu 10.0 %"
        )
    ]
    line = frame("gcn.py(6): propagate", 0, 650)
    (text,) = on_a_cpu(line, op("aten::index_add_", 0, 600), op("aten::relu", 700, 100))
    assert text.endswith(": longest: aten::index_add_ at gcn.py:6 propagate 60.0 %, aten::relu 10.0 %")
    assert on_a_cpu(*(op(f"aten::op{number}", 100 * number, 100) for number in range(8))) == []


def test_a_line_whose_ops_take_half_of_a_step_on_a_cpu_is_told_with_them() -> None:
    frames = frame("train.py(9): step", 0, 1000), frame("gcn.py(6): propagate", 0, 640)
    ops = [op(name, 200 * number, 200) for number, name in enumerate(("aten::mm", "aten::mul", "aten::mm"))]
    assert on_a_cpu(*frames, *ops, op("aten::relu", 700, 50)) == [
        (
            "in ops on the CPU, 650 us per step (65.0 %) in this one traced step: longest: aten::mm at gcn.py:6 "
            "propagate 40.0 %, aten::mul at gcn.py:6 propagate 20.0 %, aten::relu at train.py:9 step 5.0 %; 60.0 % at "
            "gcn.py:6 propagate (aten::mm 40.0 %, aten::mul 20.0 %)"
        )
    ]
    (text,) = on_a_cpu(*frames, *ops[:2], op("aten::relu", 700, 150))  # 40 % of one line, of two 55 %
    assert text.startswith("Python between ops, 450 us per step (45.0 %)")


def module(name: str, start: int, us: int) -> Event:
    return frame(f"nn.Module: {name}", start, us)


def test_a_part_of_a_model_whose_ops_take_half_of_a_step_on_a_cpu_is_told_with_them() -> None:
    """Two blocks of an encoder of 300 us each, one forward op and its backward op in each, and a head of 100 us."""
    rows: list[Event] = [module("Net_0", 0, 450), module("Encoder_0", 0, 400), module("Head_0", 400, 50)]
    for number, start in enumerate((0, 200), 1):
        rows += [module(f"Block_{number}", start, 200), op("aten::mm", start, 200, **{"Sequence number": number})]
        numbers = {"Sequence number": number, "Fwd thread id": 1}
        rows.append(op("MmBackward0", 700 - start, 100, **numbers))
    texts = on_a_cpu(*rows, op("aten::add", 400, 50), op("aten::mul", 950, 50))
    assert texts == [
        (
            "in ops on the CPU, 700 us per step (70.0 %) in this one traced step: longest: aten::mm 40.0 %, "
            "MmBackward0 20.0 %, aten::add 5.0 %; 60.0 % in module Net.Encoder.Block (aten::mm "
            "40.0 %, MmBackward0 20.0 %)"
        )
    ]


def test_python_that_takes_half_of_a_step_on_a_cpu_is_told_with_its_lines() -> None:
    frames = frame("train.py(9): step", 0, 1000), frame("train.py(3): count", 300, 500)
    assert on_a_cpu(*frames, op("aten::relu", 0, 300)) == [
        (
            "Python between ops, 700 us per step (70.0 %) in this one traced step: 500 us at train.py:3 count, "
            "200 us at train.py:9 step"
        )
    ]
    assert on_a_cpu(op("aten::relu", 0, 300)) == [
        "Python between ops, 700 us per step (70.0 %) in this one traced step: 700 us between ops in forward"
    ]


def test_python_that_takes_a_quarter_of_a_step_on_a_cpu_is_told_with_the_longest_ops_beside_it() -> None:
    frames = frame("train.py(9): step", 0, 1000), frame("train.py(3): count", 300, 500)

    def texts_of(num: int) -> list[str]:
        return on_a_cpu(*frames, *(op(f"aten::op{number}", 100 * number, 100) for number in range(num)))

    assert texts_of(6) == [
        (
            "Python between ops, 400 us per step (40.0 %) in this one traced step: 200 us at train.py:3 count, "
            "200 us at train.py:9 step; its ops, longest: aten::op0 at train.py:9 step 10.0 %, aten::op1 at "
            "train.py:9 step 10.0 %, aten::op2 at train.py:9 step 10.0 %"
        )
    ]
    assert not any(text.startswith("Python") for text in texts_of(9))


def test_a_trace_without_ops_tells_nothing_of_python() -> None:
    """Of another program, or of calls alone: what takes its time is not known."""
    assert on_a_cpu() == []
    assert on_a_cpu(call("cudaGetDeviceCount", 10, 5)) == []
