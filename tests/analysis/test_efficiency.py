"""MFU, the ledger of device time and ops against their roofs, on traces with a few kernels."""

from __future__ import annotations

from typing import Any

import pytest
from builder import Event, build, call, kernel, launch, op, step

from traceq.analysis.registry import analyze
from traceq.claims.claim import AT_MOST, BY_REPLAY, Basis, Claim
from traceq.claims.rules import supersedes
from traceq.facts.roofline.peaks import replaced_peaks
from traceq.model import Run, Trace
from traceq.report import Report

MM: dict[str, Any] = {"Input Dims": [[1000, 500], [500, 1000]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
"""1 GFLOP, 4 MB: 1 ms at 1 TFLOP/s."""


GROUPED: dict[str, Any] = {"Input Dims": [[1000, 500], [3, 500, 1000], [3]], "Input type": [*MM["Input type"], "int"]}
"""At most 1 GFLOP."""


def made(*, long: bool = False, name: str = "aten::mm", **args: Any) -> Trace:
    """One step of 10 ms, in which the host waits for a product of 2 ms (or 8) and a replayed kernel of 1 ms."""
    return build(*one_step(0, 8000 if long else 2000, name, args or MM))


def one_step(number: int, us: int, name: str, args: dict[str, Any]) -> list[Event]:
    begin, corr = 10_000 * number, 2 * number + 1
    return [
        step(begin, 10_000, number),
        op(name, begin, 10, **args),
        launch(begin + 1, 1, corr=corr),
        launch(begin + 20, 1, corr=corr + 1),
        call("cudaDeviceSynchronize", begin + 30, us + 1080),
        kernel("gemm", begin + 100, us, corr=corr),
        kernel("replayed", begin + us + 100, 1000, corr=corr + 1),
    ]


def analyzed(trace: Trace, *peaks: str) -> Report:
    with replaced_peaks(peaks):
        return analyze(Run("made", (trace,)), "efficiency")


def rows(report: Report, key: str) -> list[dict[str, Any]]:
    return report.table(key).to_dicts()


def test_mfu_is_the_time_of_the_flops_at_their_peak_of_the_step() -> None:
    (rank,) = rows(analyzed(made(), "bf16=1", "memory=100"), "efficiency")
    assert (rank["model_flops"], rank["window_ns"]) == (10**9, 10_000_000)
    assert rank["mfu_pct"] == rank["hfu_pct"] == pytest.approx(10.0)


def test_an_op_has_a_share_of_the_roof_that_binds_and_the_time_above_it() -> None:
    (row,) = rows(analyzed(made(), "bf16=1", "memory=100"), "efficiency_ops")
    assert (row["flops"], row["bytes"], row["gpu_ns"]) == (10**9, 4 * 10**6, 2_000_000)
    assert (row["tflops"], row["gbps"], row["intensity"]) == (0.5, 2.0, 250.0)
    assert (row["roof"], row["roof_pct"], row["lost_ns"]) == ("compute", pytest.approx(50), 1_000_000)
    (row,) = rows(analyzed(made(), "bf16=1", "memory=2.5"), "efficiency_ops")
    assert (row["roof"], row["roof_pct"], row["lost_ns"]) == ("memory", pytest.approx(80), 400_000)


def test_more_than_a_roof_is_no_result() -> None:
    report = analyzed(made(), "bf16=0.1", "memory=100")
    (row,) = rows(report, "efficiency_ops")
    assert (row["roof_pct"], row["lost_ns"], row["tflops"]) == (None, None, None)
    assert row["doubt"] == "model or peak is wrong"
    assert rows(analyzed(made(), "bf16=0.05", "memory=100"), "efficiency")[0]["mfu_pct"] is None
    assert "%" not in str(report.views[0]).split("is modelled")[0].split("\n", 1)[1].rsplit("\n", 1)[0]


@pytest.mark.parametrize(("name", "args"), [("aten::_grouped_mm", GROUPED), ("fbgemm::lookup", MM)])
def test_what_is_a_bound_or_known_by_its_arguments_has_neither_rate_nor_roof(name: str, args: dict[str, Any]) -> None:
    for peaks in (("bf16=1", "memory=100"), ("bf16=0.1", "memory=1"), ()):
        report = analyzed(made(name=name, **args), *peaks)
        (row,) = rows(report, "efficiency_ops")
        assert row["bytes"] > 0
        assert [row[key] for key in ("tflops", "gbps", "roof_pct", "lost_ns")] == [None] * 4
        assert bool(row["doubt"]) == bool(peaks)
        (shown,) = report.views[0].to_dicts()
        assert (shown["op"], shown["gpu_ns"], shown["roof"]) == (name, 2_000_000, "")
        assert [shown[key] for key in ("tflops", "gbps", "roof_pct", "lost_ns")] == [None] * 4
        assert "No rate where" in str(report.views[0])


def test_a_bound_counts_in_mfu_at_most_the_time_of_its_kernels() -> None:
    for peak, share in (("bf16=1", 10.0), ("bf16=0.1", 20.0)):
        (rank,) = rows(analyzed(made(name="aten::_grouped_mm", **GROUPED), peak, "memory=100"), "efficiency")
        assert rank["is_bound"]
        assert rank["mfu_pct"] == rank["hfu_pct"] == pytest.approx(share)


def test_short_calls_have_a_roof_of_their_shapes_each() -> None:
    """One is bound by 4 kB, 40 ns, the other by 250,000 FLOPs, 250 ns: together by neither."""
    wide, square = [[1, 1000], [1000, 1]], [[50, 50], [50, 50]]
    trace = build(
        *one_step(0, 8000, "aten::mm", MM),
        *(op("aten::mm", 30 + 10 * i, 5, **MM | {"Input Dims": dims}) for i, dims in enumerate((wide, square))),
        *(launch(31 + 10 * i, 1, corr=3 + i) for i in range(2)),
        *(kernel("gemm", 9500 + 10 * i, 1, corr=3 + i) for i in range(2)),
    )
    report = analyzed(trace, "bf16=1", "memory=100")
    assert [row["lost_ns"] for row in rows(report, "efficiency_ops")] == [7_000_000, 960, 750]
    (shown,) = report.views[0].to_dicts()
    assert shown["lost_ns"] == 7_001_710


def test_calls_above_the_roof_count_in_the_rate_of_all_calls_and_as_at_the_roof() -> None:
    small = {"Input Dims": [[100, 500], [500, 1000]], "Input type": MM["Input type"]}
    trace = build(
        step(0, 10_000),
        op("aten::mm", 0, 10, **MM),
        op("aten::mm", 20, 10, **small),
        launch(1, 1, corr=1),
        launch(21, 1, corr=2),
        kernel("gemm", 100, 3900, corr=1),
        kernel("gemm", 4000, 50, corr=2),
    )
    report = analyzed(trace, "bf16=1", "memory=1000")
    (row,) = report.views[0].to_dicts()
    assert row["tflops"] == pytest.approx(1.1 / 3.95)
    assert (row["num"], row["gpu_ns"], row["lost_ns"]) == (2, 3_950_000, 2_900_000)
    assert row["roof_pct"] == pytest.approx(100 * (1 - row["lost_ns"] / row["gpu_ns"]))
    assert "above the compute roof" in report.views[0].note


def test_mfu_is_unknown_where_much_is_a_bound_and_much_has_no_model() -> None:
    title = analyzed(made(name="aten::_grouped_mm", **GROUPED), "bf16=1", "memory=100").views[0].title
    assert title.startswith("MFU unknown: 66.7 %")
    title = analyzed(made(), "bf16=1", "memory=100").views[0].title
    assert title.startswith("MFU at least 10.0 %")
    assert "bfloat16 1 TFLOP/s, 100 GB/s" in title


def test_each_dtype_with_a_tenth_of_the_flops_is_named_with_its_peak() -> None:
    tenth = {"Input Dims": [[125, 500], [500, 1000]], "Input type": ["float", "float"]}
    for other, is_named in ((tenth, True), ({**tenth, "Input Dims": [[100, 500], [500, 1000]]}, False)):
        trace = build(
            step(0, 10_000),
            op("aten::mm", 0, 10, **MM),
            op("aten::mm", 20, 10, **other),
            launch(1, 1, corr=1),
            launch(21, 1, corr=2),
            kernel("gemm", 100, 3900, corr=1),
            kernel("gemm", 4000, 4000, corr=2),
        )
        title = analyzed(trace, "bf16=1", "fp32=0.5", "memory=1000").views[0].title
        assert ("bfloat16 1 TFLOP/s, float32 0.5 TFLOP/s" in title) == is_named


def test_the_shares_of_the_ledger_add_up_to_all_device_time() -> None:
    ledger = rows(analyzed(made()), "efficiency_ledger")
    assert sum(row["share_pct"] for row in ledger) == pytest.approx(100)
    assert {row["kind"]: row["gpu_ns"] for row in ledger if row["gpu_ns"]} == {
        "modelled": 2_000_000,
        "no_op": 1_000_000,
    }


def test_a_finding_names_an_op_that_takes_much_of_the_step_and_is_far_below_its_roof() -> None:
    (finding,) = analyzed(made(long=True), "bf16=1", "memory=100").findings
    assert (finding.subject.op, finding.subject.phase) == ("aten::mm", "forward")
    assert finding.ns == pytest.approx(8_000_000 - 1_000_000 / 0.7, abs=1)
    assert (finding.gain, finding.gain_by) == ((finding.ns, finding.ns), BY_REPLAY)
    expected = {"roof": "compute", "roof_pct": 12.5, "tflops": 0.125, "takes_ns": 8_000_000, "reachable_pct": 70}
    assert {name: finding.measures[name] for name in expected} == pytest.approx(expected)
    assert not analyzed(made(), "bf16=1", "memory=100").findings


@pytest.mark.parametrize(
    ("of_steps", "has_finding"),
    [((8000, 8000, 8000), True), ((2000, 8000, 2000), False), ((2000, 8000, 8000), False), ((8000, 1500), False)],
)
def test_an_op_is_below_its_roof_in_most_steps_and_beyond_their_scatter(
    of_steps: tuple[int, ...], has_finding: bool
) -> None:
    trace = build(*(row for number, us in enumerate(of_steps) for row in one_step(number, us, "aten::mm", MM)))
    findings = analyzed(trace, "bf16=1", "memory=100").findings
    assert [finding.code for finding in findings] == ["below_roof"] * has_finding
    mean_gain_us = sum(of_steps) / len(of_steps) - 1000 / 0.7
    assert mean_gain_us > 0.1 * 10_000  # of which the mean alone would make a finding
    for finding in findings:
        assert finding.ns == pytest.approx(1000 * mean_gain_us, abs=1)
        assert finding.basis == Basis(3)


def product_by_product(*, gap_us: int, us: int = 40, ends_in_sync: bool = True, **args: Any) -> Trace:
    """Fifty products of `us` in a step; one is launched every `gap_us`."""
    last = 50 * max(gap_us, us) + 20
    return build(
        step(0, last + 50),
        *(op("aten::mm", gap_us * i, gap_us, **args or MM) for i in range(50)),
        *(launch(gap_us * i + gap_us // 2, 1, corr=i + 1) for i in range(50)),
        *(
            kernel("gemm", max(gap_us * i + gap_us // 2 + 5, us * i + gap_us // 2 + 5), us, corr=i + 1)
            for i in range(50)
        ),
        *([call("cudaDeviceSynchronize", gap_us * 50 + 1, last - gap_us * 50)] * ends_in_sync),
    )


def test_an_op_below_its_roof_that_the_host_hides_is_no_finding() -> None:
    """At 70 % of the roof each product takes 14 us instead of 40: of no use where the host launches one in 100 us."""
    (finding,) = analyzed(product_by_product(gap_us=5), "bf16=100", "memory=1000").findings
    assert finding.ns == pytest.approx(50 * (40_000 - 10_000 / 0.7), abs=100)
    assert analyzed(product_by_product(gap_us=100), "bf16=100", "memory=1000").findings == ()


def test_where_the_step_cannot_be_replayed_what_it_gains_is_not_known() -> None:
    rows = one_step(0, 8000, "aten::mm", MM)
    rows[-3]["dur"] += 600
    rows[-1]["ts"] += 600  # for which no reason is recorded
    (finding,) = analyzed(build(*rows), "bf16=1", "memory=100").findings
    assert finding.ns == pytest.approx(8_000_000 - 1_000_000 / 0.7, abs=1)
    assert (finding.gain, finding.gain_by) == ((0, finding.ns), AT_MOST)


def test_products_that_memory_binds_gain_nothing_in_tf32() -> None:
    wide: dict[str, Any] = {"Input Dims": [[8, 4000], [4000, 4000]], "Input type": ["float", "float"]}
    a100 = [{"name": "NVIDIA A100-SXM4-40GB"}]
    trace = build(*one_step(0, 8000, "aten::mm", wide), deviceProperties=a100)  # 0.256 GFLOP: 13 us, 64.3 MB: 41 us
    (finding,) = analyzed(trace).findings
    assert (finding.measures["roof"], finding.remedy) == ("memory", "")
    square = wide | {"Input Dims": [[4000, 4000], [4000, 4000]]}  # 128 GFLOP: 6.56 ms, in TF32 0.82 ms
    (finding,) = analyzed(build(*one_step(0, 8000, "aten::mm", square), deviceProperties=a100)).findings
    assert (finding.remedy, finding.measures["tf32_tflops"]) == ("tf32", pytest.approx(156))
    assert finding.measures["reachable_ns"] == pytest.approx(1_172_000, rel=0.001)


def test_tf32_is_one_setting_of_all_products_in_float32() -> None:
    """Of 8 and 7 ms, each 128 GFLOP, 1.17 ms are left: the op that takes longest has the gain of both."""
    square: dict[str, Any] = {"Input Dims": [[4000, 4000], [4000, 4000]], "Input type": ["float", "float"]}
    biased = {"Input Dims": [[4000], *square["Input Dims"]], "Input type": ["float"] * 3}
    trace = build(
        step(0, 16_000),
        *(op("aten::mm", 10, 50, **square), launch(30, 5, corr=1), kernel("gemm", 100, 8_000, corr=1)),
        *(op("aten::addmm", 70, 50, **biased), launch(90, 5, corr=2), kernel("gemm", 8_100, 7_000, corr=2)),
        call("cudaDeviceSynchronize", 200, 15_000),
        deviceProperties=[{"name": "NVIDIA A100-SXM4-40GB"}],
    )
    (finding,) = analyzed(trace).findings
    assert (finding.subject.op, finding.remedy, finding.measures["setting_ns"]) == ("aten::mm", "tf32", 15_000_000)
    assert finding.ns == pytest.approx(15_000_000 - 2 * 128e9 / 156e12 / 0.7 * 1e9, rel=0.001)


def test_calls_that_could_be_shorter_than_any_kernel_are_not_below_their_roof() -> None:
    small: dict[str, Any] = {"Input Dims": [[10, 10], [10, 10]], "Input type": MM["Input type"]}
    assert analyzed(product_by_product(gap_us=5, **small), "bf16=100", "memory=1000").findings == ()
    trace = product_by_product(gap_us=5, **small)
    report = analyzed(trace, "bf16=100", "memory=1000")
    assert report.views[0].to_dicts()[0]["roof_pct"] == pytest.approx(0.0015)


def test_without_peaks_there_are_rates_but_no_shares() -> None:
    (row,) = rows(analyzed(made()), "efficiency_ops")
    assert (row["tflops"], row["roof"], row["roof_pct"], row["lost_ns"]) == (0.5, "", None, None)


def attending(
    softmax: tuple[int, ...] = (2, 8, 256, 512), *, num_values: int = 3, steps_us: tuple[int, ...] = (10,)
) -> list[Claim]:
    """Claims on three times q k, softmax and `num_values` times the product with values, each 10 us in a step."""
    rows = [row for number, us in enumerate(steps_us) for row in attention_step(number, softmax, num_values, us)]
    trace = build(*rows, deviceProperties=[{"name": "NVIDIA H100 80GB HBM3"}])
    return [finding for finding in analyzed(trace).findings if finding.code == "unfused_attention"]


def attention_step(
    number_of_step: int, softmax: tuple[int, ...], num_values: int, us: int, *, is_ahead: bool = False
) -> list[Event]:
    """A step of 400 us, in which the host launches a kernel each 20 us, or `is_ahead` and waits for the last."""
    half, number, every = "c10::BFloat16", 20 * number_of_step, 5 if is_ahead else 20
    begin, last = 20 * number, 20 * number + 19
    rows = [step(begin, 400, number_of_step), kernel("last", *((188, 212) if is_ahead else (begin + 390, 10)), last)]
    rows += [launch(begin + (100 if is_ahead else 380), 1, last)]
    rows += [call("cudaDeviceSynchronize", begin + 102, 298)] * is_ahead
    calls = [
        ("aten::bmm", [[16, 256, 64], [16, 64, 512]], 3),
        ("aten::_softmax", [list(softmax), [], []], 3),
        ("aten::bmm", [[16, 256, 512], [16, 512, 64]], num_values),
    ]
    for name, dims, num in calls:
        for _ in range(num):
            types = [half if shape else "Scalar" for shape in dims]
            op_us = begin + every * (number - begin // 20)
            rows += [op(name, op_us, min(every - 1, 15), **{"Input Dims": dims, "Input type": types})]
            rows += [launch(op_us + 1, 2, number + 1), kernel(name, 20 * number + 8, us, number + 1)]
            number += 1
    return rows


def test_products_with_a_softmax_of_their_shape_between_them_are_attention_without_a_fused_kernel() -> None:
    (claim,) = attending()
    assert (claim.subject.phase, claim.ns, claim.gain) == ("forward", 90_000, (0, 90_000))
    assert claim.measures == {
        "ops": "aten::bmm, aten::_softmax, aten::bmm",
        "scores": "16 x 256 x 512",
        "takes_ns": 90_000,
        "share_pct": pytest.approx(22.5),
    }


def test_a_fused_kernel_also_scales_the_scores_and_one_claim_has_those_of_all_phases() -> None:
    """Of 54.5 of 78.6 ms in two equal attentions 22.1 ms were told, those of one phase without their division."""
    forward = attention_step(0, (2, 8, 256, 512), 3, 10)
    scaled = [op("aten::div", 310, 15, **{"Input Dims": [[2, 8, 256, 512], []], "Input type": ["c10::BFloat16", ""]})]
    scaled += [launch(311, 2, 18), kernel("div", 330, 10, 18)]
    trace = build(*forward, *scaled, deviceProperties=[{"name": "NVIDIA H100 80GB HBM3"}])
    (claim,) = [each for each in analyzed(trace).findings if each.code == "unfused_attention"]
    assert (claim.ns, claim.measures["ops"]) == (100_000, "aten::bmm, aten::_softmax, aten::bmm, aten::div")


def test_an_op_below_its_roof_that_is_part_of_such_attention_is_not_told_twice() -> None:
    rows_of_step = attention_step(0, (2, 8, 256, 512), 3, 20, is_ahead=True)
    trace = build(*rows_of_step, deviceProperties=[{"name": "NVIDIA H100 80GB HBM3"}])
    below, attention = sorted(analyzed(trace).findings, key=lambda finding: finding.code)
    assert (below.code, attention.code) == ("below_roof", "unfused_attention")
    assert below.key in {row["key"] for row in rows(analyzed(trace), "efficiency_ops")}
    assert supersedes(attention, below)
    assert below.ns < attention.ns


def test_attention_takes_much_of_most_steps_and_beyond_their_scatter() -> None:
    (claim,) = attending(steps_us=(10, 10, 10))
    assert (claim.ns, claim.basis) == (90_000, Basis(3))
    assert attending(steps_us=(2, 18, 2)) == []  # 16.5 % of the mean step
    assert attending(steps_us=(2, 18, 12)) == []


def test_a_softmax_of_another_shape_or_number_is_no_attention() -> None:
    assert attending((2, 8, 256, 511)) == []
    assert attending((4096, 512)) == []
    assert attending(num_values=4) == []


@pytest.mark.parametrize("name", ["aten::bmm", "aten::baddbmm", "aten::_softmax"])
@pytest.mark.parametrize("shapes", [[], [[]], [[2, 3], [3, 4]], [[2, 3, 4], [2, 4]], [[[1, 2], [3]]], [[1.5, 2, 3]]])
def test_shapes_that_such_an_op_cannot_have_are_no_attention(name: str, shapes: list[Any]) -> None:
    trace = made(name=name, **{"Input Dims": shapes})
    assert [finding.code for finding in analyzed(trace).findings if finding.code == "unfused_attention"] == []


def test_an_op_inside_itself_is_one_call_whose_bytes_count_once() -> None:
    """A sort of 10^6 floats moves 16 MB: half of the roof of 2 GB/s in 16 ms, with any number of overloads within."""
    args: dict[str, Any] = {"Input Dims": [[1_000_000]], "Input type": ["float"]}
    inner = [op("aten::sort", 1, 15_000, **args), op("aten::sort", 2, 14_000, **args)]
    for overloads in ([], inner[:1], inner):
        trace = build(step(0, 20_000), op("aten::sort", 0, 16_000, **args), *overloads)
        report = analyzed(trace, "fp32=1", "memory=2")
        (row,) = rows(report, "efficiency_ops")
        assert (row["num"], row["gpu_ns"], row["bytes"]) == (1, 16_000_000, 16_000_000)
        assert (row["gbps"], row["roof_pct"]) == (1.0, pytest.approx(50))
        (shown,) = report.views[0].to_dicts()
        assert (shown["num"], shown["gpu_ns"], shown["lost_ns"]) == (1, 16_000_000, 8_000_000)


def test_an_op_inside_its_form_in_place_is_part_of_that_call() -> None:
    args: dict[str, Any] = {"Input Dims": [[1000], []], "Input type": ["float", "double"]}
    trace = build(
        step(0, 100),
        op("aten::mul_", 10, 20, **args),
        launch(11, 1, corr=1),
        op("aten::mul", 12, 10, **args),
        launch(14, 1, corr=2),
        kernel("a", 40, 10, corr=1),
        kernel("b", 50, 10, corr=2),
    )
    assert [(row["op"], row["num"], row["gpu_ns"]) for row in rows(analyzed(trace, "memory=2"), "efficiency_ops")] == [
        ("aten::mul_", 1, 20_000)
    ]
