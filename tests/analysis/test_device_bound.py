"""What limits a step in which a device or a CPU computes all the time: its kernels or ops, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, op, step

from traceq.analysis._lost_time import StepTimes
from traceq.analysis.registry import analyze
from traceq.claims.claim import LOW, Claim, Subject
from traceq.model import Manifest, Run, SourceLines

SGEMM, TF32 = "ampere_sgemm_128x64_tn", "cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int)"


def claims(*kernels: tuple[str, str, int], device: str = "", compute_major: int = 0) -> list[Claim]:
    """Those of a step of 1,000 us in which kernels (name, op, us) run one after the other from 20 us."""
    rows: list[Event] = [step(0, 1000)]
    start = 20
    for number, (name, around, us) in enumerate(kernels, 1):
        rows += [op(around, 2 * number, 2), launch(2 * number, 1, number), kernel(name, start, us, number)]
        start += us
    rows.append(call("cudaDeviceSynchronize", 100, start - 95))
    of_device = {"id": 0, "name": device, "computeMajor": compute_major}
    properties = {"deviceProperties": [of_device]} if device else {}
    return list(analyze(Run("", (build(*rows, **properties),)), "partition").findings)


def of_kernels(*kernels: tuple[str, str, int], device: str = "") -> dict[str, Any]:
    (claim,) = claims(*kernels, device=device)
    return dict(claim.measures)


def test_a_step_that_computes_all_the_time_says_in_what() -> None:
    (claim,) = claims((SGEMM, "aten::mm", 300), (TF32, "aten::mm", 300), (MUL, "aten::mul", 330), ("tiny", "x", 20))
    assert (claim.code, claim.ns, claim.remedy, claim.severity) == ("device_bound", 950_000, "only_compute", LOW)
    mul, sgemm, tf32 = str(claim.measures["longest"]).split(", ")
    assert mul == "mul of aten::mul 33.0 %"
    assert (sgemm, tf32[:11]) == (f"{SGEMM} of aten::mm 30.0 %", "cutlass_80_")


@pytest.mark.parametrize(("host_us", "remedy"), [(20, "only_compute"), (98, "")])
def test_a_device_that_waits_for_each_launch_is_not_all_that_a_faster_step_needs(host_us: int, remedy: str) -> None:
    """A device computed for 86.5 % of a step, of which twice its speed saves 6 %: its host needed 106 of 117 ms."""
    rows: list[Event] = []
    for index in range(3):
        rows.append(step(1000 * index, 1000, index))
        for part in range(10):
            number, issued = 10 * index + part + 1, 1000 * index + host_us * part
            rows += [op("aten::mm", issued, host_us - 1), launch(issued + host_us - 5, 2, number)]
            start = max(issued + host_us, 1000 * index + 20 + 96 * part)
            rows.append(kernel(SGEMM, start, 96 if host_us < 96 else 90, number))
        rows.append(call("cudaDeviceSynchronize", 1000 * index + 10 * host_us, 1000 - 10 * host_us - 2))
    (claim,) = [each for each in analyze(Run("", (build(*rows),)), "partition").findings if each.code == "device_bound"]
    assert claim.remedy == remedy


def test_steps_of_very_unlike_length_give_their_range() -> None:
    """Their mean, 1,900 us, is none of any step."""
    rows: list[Event] = [step(0, 1000, 1), step(1000, 3000, 2), op("aten::mm", 0, 950), op("aten::mm", 1000, 2850)]
    (claim,) = analyze(Run("", (build(*rows),)), "partition").findings
    assert (claim.code, claim.ns, claim.measures["share_pct"]) == ("cpu_bound", 1_900_000, 95)
    ends = claim.measures["least_time_by_step_ns"], claim.measures["most_time_by_step_ns"]
    assert ends == (950_000, 2_850_000)


def test_a_kernel_of_several_ops_has_none() -> None:
    assert of_kernels((SGEMM, "aten::mm", 450), (SGEMM, "aten::addmm", 450))["longest"] == f"{SGEMM} 90.0 %"


@pytest.mark.parametrize(
    ("name", "is_float32"),
    [
        (SGEMM, True),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)", True),
        ("void cudnn::cnn::wgrad_alg1_engine<float, 512, 6, 5, 3, 3, 3, false>(P)", True),
        ("void cudnn::cnn::wgrad_alg1_engine<__half, 512, 6, 5, 3, 3, 3, false>(P)", False),
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
    measures = of_kernels((name, "aten::mm", 300), ("ampere_fp16_s16816gemm_fp16_128x64_tn", "x", 600))
    assert measures.get("float32_pct") == (30 if is_float32 else None)


@pytest.mark.parametrize(
    ("device", "compute_major", "measure"),
    [
        ("Tesla T4", 7, "float32_without_tf32_pct"),
        ("NVIDIA A100-SXM4-80GB", 0, "float32_pct"),
        ("NVIDIA GeForce RTX 4090", 8, "float32_without_tf32_pct"),  # its TF32 is no faster than float32
        ("NVIDIA GeForce RTX 3060", 8, "float32_pct"),
        ("NVIDIA GeForce RTX 3060", 0, ""),
        ("NVIDIA GeForce GTX 1660", 7, ""),
    ],
)
def test_tensor_cores_are_a_remedy_where_the_device_is_known_to_have_them(
    device: str, compute_major: int, measure: str
) -> None:
    """The kernel runs on any device."""
    (claim,) = claims(("maxwell_scudnn_winograd", "x", 900), device=device, compute_major=compute_major)
    assert {name for name in claim.measures if name.startswith("float32")} == ({measure} - {""})
    assert not measure or claim.measures[measure] == 90


@pytest.mark.parametrize(
    ("kernel_name", "measure"), [("ampere_x", "float32_pct"), ("volta_x", "float32_without_tf32_pct")]
)
def test_kernels_of_a_device_tell_whether_it_has_tf32(kernel_name: str, measure: str) -> None:
    assert of_kernels(("volta_sgemm_128x64_tn", "x", 300), (kernel_name, "y", 600))[measure] == 30


def test_elementwise_kernels_are_told_from_a_quarter_of_the_compute_time() -> None:
    assert of_kernels((MUL, "aten::mul", 250), ("gemm", "aten::mm", 700))["elementwise_pct"] == 25
    assert "elementwise_pct" not in of_kernels((MUL, "aten::mul", 150), ("gemm", "aten::mm", 800))
    assert "elementwise_pct" not in of_kernels((MUL, "Torch-Compiled Region: 0/0", 900))


@pytest.mark.parametrize(
    ("name", "is_float64"),
    [
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nt_align1", True),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<double>, char*>(int)", True),
        ("ampere_dgemm_64x64_nn", True),
        ("void normal_kernel<float>(at::TensorBase const&, double, double)", False),  # arguments are no elements
    ],
)
def test_kernels_in_float64_are_told_by_their_names(name: str, is_float64: bool) -> None:
    assert of_kernels((name, "x", 600), ("gemm", "aten::mm", 300)).get("float64_pct") == (60 if is_float64 else None)


@pytest.mark.parametrize(
    ("types", "is_float64"),
    [
        (["double", "double"], True),
        (["double", "long int", ""], True),
        (["c10::BFloat16", "double"], False),  # a number beside a tensor
        (["float", "double"], False),
        (["long int"], False),
    ],
)
def test_ops_in_float64_are_told_by_their_inputs(types: list[str], is_float64: bool) -> None:
    inputs = {"Input Dims": [[2, 2]] * len(types), "Input type": types}
    (claim,) = on_a_cpu(op("aten::mul", 0, 600, **inputs), op("aten::relu", 600, 350))
    assert claim.measures.get("float64_pct") == (60 if is_float64 else None)


def test_many_short_kernels_are_not_named() -> None:
    assert "longest" not in of_kernels(*((f"kernel{number}", "x", 30) for number in range(30)))


def test_a_step_that_loses_time_elsewhere_is_not_device_bound() -> None:
    assert claims(("gemm", "aten::mm", 800)) == []  # 80 %
    rows = [step(0, 1000), launch(0, 1, 1), kernel("gemm", 2, 870, 1), launch(985, 1, 2), kernel("gemm", 990, 5, 2)]
    assert "device_bound" not in [each.code for each in analyze(Run("", (build(*rows),)), "partition").findings]


def on_a_cpu(*events: Event) -> list[Claim]:
    return list(analyze(Run("", (build(step(0, 1000), *events),)), "partition").findings)


def test_a_cpu_that_runs_ops_all_the_time_says_which() -> None:
    ops = op("aten::conv2d", 0, 700), op("aten::_slow_conv2d_forward", 10, 600), op("aten::relu", 700, 250)
    (claim,) = on_a_cpu(*ops)
    assert (claim.code, claim.ns, claim.remedy) == ("cpu_bound", 950_000, "only_compute")
    assert claim.measures["slow_convolution_pct"] == 60
    longest = "aten::_slow_conv2d_forward 60.0 %", "aten::relu 25.0 %", "aten::conv2d 10.0 %"
    assert claim.measures["longest"] == ", ".join(longest)


def test_what_an_autograd_function_runs_itself_is_python() -> None:
    """The backward of an adjoint method is a solver in Python; a backward of torch's own has a number."""
    forward, backward = op("OdeintAdjointMethod", 0, 300), op("OdeintAdjointMethodBackward", 300, 600)
    (claim,) = on_a_cpu(forward, op("aten::mm", 10, 200), backward, op("MmBackward0", 310, 200))
    assert claim.measures["autograd_function_pct"] == 50
    (compiled,) = on_a_cpu(op("CompiledFunction", 0, 300), op("MmBackward0", 300, 600))
    assert "autograd_function_pct" not in compiled.measures


def test_the_share_of_a_kernel_at_a_place_is_that_of_the_place() -> None:
    """`aten::addmm at model.py:343 97.4 %` held what other lines had."""
    rows = [step(0, 100), op("aten::mm", 0, 5), launch(1, 1, 1), kernel("gemm", 5, 86, 1)]
    rows += [op("aten::bmm", 8, 5), launch(9, 1, 2), kernel("gemm", 92, 5, 2)]
    (claim,) = [each for each in analyze(Run("", (build(*rows),)), "partition").findings if each.code == "device_bound"]
    assert claim.measures["longest"] == "gemm of aten::mm 86.0 %"


def test_one_op_that_takes_half_of_a_step_on_a_cpu_is_told_with_its_line() -> None:
    ops = op("aten::index_add_", 0, 600), op("aten::relu", 700, 100)
    (claim,) = on_a_cpu(*ops)
    assert (claim.code, claim.ns, claim.remedy) == ("cpu_bound", 700_000, "")
    assert claim.subject == Subject(op="aten::index_add_")
    (claim,) = on_a_cpu(frame("gcn.py(6): propagate", 0, 650), *ops)
    assert claim.subject == Subject(op="aten::index_add_", line="gcn.py:6 propagate")
    assert on_a_cpu(*(op(f"aten::op{number}", 100 * number, 100) for number in range(8))) == []


def test_a_line_whose_ops_take_half_of_a_step_on_a_cpu_is_told_with_them() -> None:
    frames = frame("train.py(9): step", 0, 1000), frame("gcn.py(6): propagate", 0, 640)
    ops = [op(name, 200 * number, 200) for number, name in enumerate(("aten::mm", "aten::mul", "aten::mm"))]
    (claim,) = on_a_cpu(*frames, *ops, op("aten::relu", 700, 50))
    assert (claim.code, claim.subject) == ("cpu_bound", Subject(line="gcn.py:6 propagate"))
    (claim,) = on_a_cpu(*frames, *ops[:2], op("aten::relu", 700, 150))  # 40 % of one line, of two 55 %
    assert (claim.code, claim.ns) == ("python_bound", 450_000)


TWO_LINES = SourceLines(
    ("train.py:9 step", "gcn.py:6 walk", "gcn.py:7 walk"), {"other|x": (1,) * 3, "other|y": (2,) * 4}
)


def recorded(*events: Event) -> list[Claim]:
    """Of a recording that embeds the lines of ops `x` and `y`, two lines of one function."""
    embedded = {"lines": TWO_LINES, "manifest": Manifest(1, "", "", "", {}, (), ("forward",), 1, 0)}
    return list(analyze(Run("", (build(step(0, 1000), *events, recorded=embedded),)), "partition").findings)


def test_a_function_whose_ops_take_half_of_a_step_on_a_cpu_is_told_with_its_longest_line() -> None:
    """No line of it has as much: 270 and 360 us."""
    ops = [*(op("x", 90 * number, 90) for number in range(3)), *(op("y", 270 + 90 * number, 90) for number in range(4))]
    (claim,) = recorded(*ops)
    assert (claim.code, claim.ns, claim.subject) == ("cpu_bound", 630_000, Subject(line="gcn.py:7 walk"))
    assert claim.measures["function"] == "walk"
    (claim,) = recorded(*ops, annotation("Optimizer.step#SGD.step", 275, 80))  # the loop's own function
    assert claim.code == "python_bound"


def test_ops_that_take_all_of_a_step_are_told_with_the_longest_line_where_none_has_most() -> None:
    ops = [
        op(name, start, 150) for name, start in (("y", 0), ("y", 150), ("z", 300), ("z", 450), ("v", 600), ("w", 750))
    ]
    (claim,) = recorded(*ops)
    assert (claim.subject, claim.measures["longest_line"]) == (Subject(), "gcn.py:7 walk")


def test_an_op_of_one_kind_of_node_in_a_backward_pass_is_told_with_it() -> None:
    """Where its name does not tell it, as that of `aten::embedding_dense_backward` does."""
    forward, node = (
        op("aten::embedding", 900, 20),
        op("autograd::engine::evaluate_function: EmbeddingBackward0", 0, 800),
    )
    (claim,) = on_a_cpu(forward, node, op("aten::embedding_dense_backward", 10, 780), op("aten::fill_", 20, 700))
    assert (claim.subject, claim.measures["node"]) == (Subject(op="aten::fill_"), "EmbeddingBackward0")
    assert claim.measures["longest"] == "aten::fill_ of EmbeddingBackward0 70.0 %, aten::embedding_dense_backward 8.0 %"
    (claim,) = on_a_cpu(forward, node, op("aten::fill_", 20, 500), op("aten::fill_", 800, 90))
    assert "node" not in claim.measures


def module(name: str, start: int, us: int) -> Event:
    return frame(f"nn.Module: {name}", start, us)


def test_a_part_of_a_model_whose_ops_take_half_of_a_step_on_a_cpu_is_told_with_them() -> None:
    """Two blocks of an encoder of 300 us each, one forward op and its backward op in each, and a head of 100 us."""
    rows: list[Event] = [module("Net_0", 0, 450), module("Encoder_0", 0, 400), module("Head_0", 400, 50)]
    for number, start in enumerate((0, 200), 1):
        rows += [module(f"Block_{number}", start, 200), op("aten::mm", start, 200, **{"Sequence number": number})]
        numbers = {"Sequence number": number, "Fwd thread id": 1}
        rows.append(op("MmBackward0", 700 - start, 100, **numbers))
    (claim,) = on_a_cpu(*rows, op("aten::add", 400, 50), op("aten::mul", 950, 50))
    assert (claim.code, claim.ns, claim.subject) == ("cpu_bound", 700_000, Subject(module="Net.Encoder.Block"))


def test_python_that_takes_half_of_a_step_on_a_cpu_is_told_with_its_lines() -> None:
    frames = frame("train.py(9): step", 0, 1000), frame("train.py(3): count", 300, 500)
    (claim,) = on_a_cpu(*frames, op("aten::relu", 0, 300))
    assert (claim.code, claim.ns, claim.subject.line) == ("python_bound", 700_000, "train.py:3 count")
    assert claim.measures["places"] == ", ".join(("500 us at train.py:3 count", "200 us at train.py:9 step"))
    (claim,) = on_a_cpu(op("aten::relu", 0, 300))
    assert (claim.subject, claim.measures["place"]) == (Subject(phase="forward"), "between ops in forward")


def test_python_that_takes_a_quarter_of_a_step_on_a_cpu_is_told_with_the_longest_ops_beside_it() -> None:
    frames = frame("train.py(9): step", 0, 1000), frame("train.py(3): count", 300, 500)

    def claims_of(num: int) -> list[Claim]:
        return on_a_cpu(*frames, *(op(f"aten::op{number}", 100 * number, 100) for number in range(num)))

    (claim,) = claims_of(6)
    assert (claim.code, claim.ns) == ("python_bound", 400_000)
    assert str(claim.measures["longest"]).startswith("aten::op0 at train.py:9 step 10.0 %")
    assert not any(claim.code == "python_bound" for claim in claims_of(9))


def test_a_trace_without_ops_tells_nothing_of_python() -> None:
    """Of another program, or of calls alone: what takes its time is not known."""
    assert on_a_cpu() == []
    assert on_a_cpu(call("cudaGetDeviceCount", 10, 5)) == []


@pytest.mark.parametrize(("once_ns", "share_pct"), [(2, 100 * 78 / 100), (40, 100 * 78 / 98)])
def test_shares_are_of_the_whole_step_unless_a_cold_start_is_told(once_ns: int, share_pct: float) -> None:
    """A matmul of 78.6 of 81.0 ms was 99.3 % of the trace, as the profiler's own 1.86 ms counted as nothing."""
    rest_ns = 98 - 78
    by_category = {"compute": np.array([78.0]), "idle": np.array([float(rest_ns)]), "once": np.array([float(once_ns)])}
    assert StepTimes(by_category, np.zeros(1)).share_pct("compute") == pytest.approx(share_pct)
