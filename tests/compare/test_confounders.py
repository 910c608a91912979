"""What differs besides the change is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import build, call, kernel, launch, op
from made_sides import H100, MANIFEST, PAIRS, codes, plain, rows, run_of
from statements import of_code, only, statements

from traceq.compare.diff import diff_runs
from traceq.model import Arm, Manifest, Run, WallPart, WallTime


def test_other_parameters_and_versions_are_named() -> None:
    other = replace(
        MANIFEST,
        run_id="r2",
        parameters={"batch_size": 16, "size": "tiny", "extra": 1},
        environment={"torch": "2.10", "host": "here", "device": "cpu", "models": "GPT"},
    )
    assert confounded(run_of("off"), run_of("off", manifest=other)) == [
        "batch_size: 8 against 16",
        "extra: None against 1",
        "torch: 2.9 against 2.10",
        "models: unknown against GPT",
    ]


def test_what_an_arm_declares_is_no_confounder_and_clocks_and_throttling_are() -> None:
    def recording(size: int, mhz: int, throttled: str) -> Manifest:
        arms = (Arm("large", "", baseline=True, samples_per_step=8, varied={"batch_size": size}),)
        environment = {"torch": "2.9", "host": "here", "device": "cuda", "sm_mhz": mhz, "throttled": throttled}
        return replace(MANIFEST, run_id=f"r{size}", arms=arms, environment=environment)

    ours = Run("a", (), recording(8, 1980, ""), "large", PAIRS)
    theirs = Run("b", (), recording(16, 1900, "sw_power_cap"), "large", PAIRS)
    assert confounded(ours, theirs) == ["throttled: no against sw_power_cap", "clocks: 1,980 MHz against 1,900 MHz"]


def test_versions_and_options_of_the_profiler_that_differ_are_named() -> None:
    old, new = {"cuda_driver_version": 12080, "with_stack": 1}, {"cuda_driver_version": 13000}
    job = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "nccl_version": "2.28.9"}}
    assert confounded(plain(20, **old), plain(30, **new, **job)) == [
        "cuda driver version: 12080 against 13000",
        "profiler's with_stack: yes against no",
    ]


def shaped(*ops: tuple[str, list[object]]) -> Run:
    """One step in which these ops have inputs of these shapes."""
    each = [op(name, 5 + 5 * index, 4, **{"Input Dims": dims}) for index, (name, dims) in enumerate(ops)]
    return Run("plain", (build(*rows(), *each, **H100),))


def test_matmuls_that_never_have_the_same_shapes_are_named_by_the_largest() -> None:
    a = shaped(
        ("aten::mm", [[8, 64], [64, 64]]), ("aten::addmm", [[9], [8, 64], [64, 9], []]), ("aten::mm", [[2], [2]])
    )
    b = shaped(("aten::mm", [[16, 64], [64, 64]]), ("aten::addmm", [[9], [16, 64], [64, 9], []]))
    (text,) = confounded(a, b)
    assert text.startswith("shapes: ")
    assert " aten::mm is [[8, 64], [64, 64]] against [[16, 64], [64, 64]], " in text
    assert "1 more likewise" in text


def confounded(a: Run, b: Run) -> list[str]:
    texts = [caveat.text for caveat in diff_runs(a, b).caveats if caveat.code == "confounded"]
    return [text.removeprefix("possible confounder: ") for text in texts]


def test_the_same_products_with_a_bias_or_without_are_the_same_work() -> None:
    """As where torch.compile multiplies the matrices of a linear layer by itself: (8, 64, 32) and (32, 8, 16)."""
    a = shaped(("aten::addmm", [[32], [8, 64], [64, 32]]), ("aten::mm", [[32, 8], [8, 16]]))
    b = shaped(("aten::mm", [[8, 64], [64, 32]]), ("aten::addmm", [[16], [8, 32], [32, 16]]))
    assert confounded(a, b) == []
    larger = shaped(("aten::mm", [[16, 64], [64, 32]]), ("aten::addmm", [[16], [16, 32], [32, 16]]))
    assert len(confounded(a, larger)) == 1


def test_outputs_that_compiled_code_passes_and_a_bias_added_later_are_the_same_work() -> None:
    image, weight = [16, 3, 32, 32], [32, 3, 3, 3]
    a = shaped(("aten::addmm", [[9], [8, 64], [64, 9], [], []]), ("aten::convolution", [image, weight, [32], [], []]))
    b = shaped(("aten::addmm", [[9], [8, 64], [64, 9], [], [], [8, 9]]), ("aten::convolution", [image, weight, [], []]))
    assert confounded(a, b) == []
    b = shaped(("aten::addmm", [[9], [4, 64], [64, 9], [], [], [4, 9]]), ("aten::convolution", [image, weight, [], []]))
    assert len(confounded(a, b)) == 1


def test_without_a_product_in_common_the_op_with_the_largest_inputs_tells() -> None:
    """Products in CUDA graphs are not recorded; a loss beside them is."""
    ours, theirs = (
        shaped(("aten::_log_softmax", [[rows, 64]]), ("aten::fill_", [[1]]), ("aten::add", [[4]]))
        for rows in (128, 1024)
    )
    (text,) = confounded(ours, theirs)
    assert text.endswith("aten::_log_softmax is [[128, 64]] against [[1024, 64]]")
    assert not confounded(ours, ours)


def test_a_cold_start_in_what_is_compared_is_told_with_its_time_on_both_sides() -> None:
    def started(first_ms: int) -> Run:
        first = op("aten::empty", 0, 1000 * first_ms), call("cudaMalloc", 5, 10)
        work = (launch(1000 * first_ms + 10, 5, 1), kernel("gemm", 1000 * first_ms + 20, 900, 1))
        return Run("plain", (build(*first, *work, **H100),))

    result = diff_runs(started(200), started(300))
    assert (result.answer.code, result.answer.measures["delta_ns"]) == ("other_pace", 100_000_000)
    assert "cold_start" in [each.code for each in result.basis]
    once = only("cold_start", result)
    assert [once[f"once_{side}_ns"] for side in "ab"] == pytest.approx([200_000_000, 300_000_000], rel=1e-3)
    assert not of_code("cold_start", diff_runs(plain(20), plain(30)))


def typed(*ops: tuple[str, list[object]]) -> Run:
    """One step in which these ops have inputs of these types."""
    each = [op(name, 5 + 5 * index, 4, **{"Input type": kinds}) for index, (name, kinds) in enumerate(ops)]
    return Run("plain", (build(*rows(), *each, **H100),))


@pytest.mark.parametrize(
    ("ours", "theirs", "reported"),
    [
        (["float", "float"], ["c10::BFloat16", "c10::BFloat16"], ["dtype: aten::mm of float32 against bfloat16"]),
        (["c10::Half", "float"], ["double"], ["dtype: aten::mm of float16 against float64"]),
        (["float"], ["float", "c10::BFloat16"], []),
        (["float"], [], []),
        (["float"], [7], []),
    ],
)
def test_matmuls_of_another_type_are_other_work(ours: list[object], theirs: list[object], reported: list[str]) -> None:
    a, b = typed(("aten::mm", ours)), typed(("aten::mm", theirs))
    assert confounded(a, b) == reported
    assert [each["differences"] for each in of_code("work_differs", diff_runs(a, b))] == reported


def test_products_that_one_side_alone_scales_are_of_another_type() -> None:
    plain = typed(("aten::mm", ["c10::BFloat16"]), ("aten::_grouped_mm", ["c10::BFloat16"]))
    scaled = typed(("aten::mm", ["c10::BFloat16"]), ("aten::_scaled_grouped_mm", ["c10::Float8_e4m3fn"]))

    def dtypes(a: Run, b: Run) -> list[str]:
        return [text for text in confounded(a, b) if text.startswith("dtype: ")]

    one, other = "aten::_grouped_mm of bfloat16", "aten::_scaled_grouped_mm of float8_e4m3fn"
    assert dtypes(plain, scaled) == [f"dtype: {one} against {other}"]
    assert dtypes(scaled, plain) == [f"dtype: {other} against {one}"]
    assert dtypes(scaled, scaled) == []


def test_a_change_that_replaces_one_op_of_several_is_no_other_work() -> None:
    same = ("aten::mm", [[8, 64], [64, 64]])
    a, b = shaped(same, ("aten::bmm", [[4, 99, 99], [4, 99, 9]])), shaped(same, ("aten::mm", [[1, 2], [2, 3]]))
    assert "confounded" not in codes(diff_runs(a, b))
    odd = shaped(("aten::mm", ["x"]), ("aten::mm", [[[8, 8]], [8]]), ("aten::bmm", [[], []]))
    assert "confounded" not in codes(diff_runs(a, odd))


def test_a_host_without_recorded_ops_is_not_in_python() -> None:
    def launches_at(us: int) -> Run:
        first, second = (launch(0, 2, 1), kernel("a", 5, 20, 1)), (launch(us, 2, 2), kernel("b", us + 5, 20, 2))
        return Run("plain", (build(*first, *second, **H100),))

    result = diff_runs(launches_at(100), launches_at(1_000))
    (first, *_) = of_code("cause", result)
    assert (first["delta_ns"], str(first["what"]).partition(" in ")[0]) == (900_000, "unrecorded host ops")
    assert not any("Python" in str(each) for each in statements(result))


@pytest.mark.parametrize(("ours", "theirs", "is_told"), [(51, 83, True), (51, 51, True), (20, 24, False)])
def test_that_much_of_the_time_is_in_steps_that_do_not_count_is_told(ours: int, theirs: int, is_told: bool) -> None:
    """A change may be in those: of a GAN, whose generator trained in every other block of steps."""
    of_sides = ((WallPart("regular", 100 - pct), WallPart("evaluation", pct, 5)) for pct in (ours, theirs))
    facts = (WallTime(parts).facts() for parts in of_sides)
    named = zip(("off", "on"), facts, strict=True)
    arms = tuple(Arm(name, "", baseline=name == "off", facts=of_arm) for name, of_arm in named)
    off, on = (Run("run", (), replace(MANIFEST, arms=arms), name, PAIRS) for name in ("off", "on"))
    uncounted = of_code("uncounted_steps", diff_runs(off, on))
    assert [(each["a_pct"], each["b_pct"]) for each in uncounted] == [(ours, theirs)] * is_told


def test_work_that_one_side_does_besides_its_steps_is_told_with_its_line() -> None:
    """Pauses come by chance, and 0.9 % is less than a step scatters."""

    def recorded(name: str, *parts: tuple[str, int]) -> Run:
        irregular = [WallPart(kind, ns, 5, "train.py:7 main") for kind, ns in parts]
        regular = WallPart("regular", 1000 - sum(ns for _, ns in parts))
        facts = WallTime((regular, *irregular)).facts()
        manifest = replace(MANIFEST, run_id=name, environment={**MANIFEST.environment, **facts})
        return Run(name, (), manifest, "off", PAIRS)

    def work_of(*sides: Run) -> list[tuple[object, ...]]:
        keys = ("side", "work", "spent_pct", "other_pct")
        return [tuple(each.get(key) for key in keys) for each in of_code("work_between", diff_runs(*sides))]

    plain, evaluating = recorded("a"), recorded("b", ("evaluation", 30), ("pause", 200))
    assert work_of(plain, evaluating) == [("b", "5 evaluations (train.py:7 main)", 3, None)]
    assert work_of(evaluating, plain) == [("a", "5 evaluations (train.py:7 main)", 3, None)]
    assert work_of(evaluating, recorded("c", ("evaluation", 39))) == []
