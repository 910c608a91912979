"""Device time of ops divided in more work and slower work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose, log

import pytest
from builder import Event, build, kernel, launch, op, step
from hypothesis import example, given
from hypothesis import strategies as st
from statements import of_code

from traceq.claims.claim import Measure
from traceq.compare.diff import diff_runs
from traceq.compare.result import Traced
from traceq.compare.work_deltas import WorkDelta, log_mean, split, work_deltas
from traceq.compare.work_statements import op_work, work_factor
from traceq.model import Run, Trace

POSITIVE = st.floats(1, 1e9)


def product(rows: int, start: int, dur: int, corr: int, name: str = "aten::mm") -> list[Event]:
    shapes = {"Input Dims": [[rows, 16], [16, 4]], "Input type": ["float", "float"]}
    return [op(name, start, 10, **shapes), launch(start + 1, 1, corr=corr), kernel("gemm", start + 20, dur, corr=corr)]


def made(*products: tuple[int, int]) -> Trace:
    """A step with a product of so many rows that takes so long, each."""
    rows = [event for index, (num, dur) in enumerate(products) for event in product(num, 1000 * index, dur, index + 1)]
    return build(step(0, 1000 * len(products) + 1000), *rows)


@example(1e9, 1e9 + 0.03125, (1.0, 2.0), (1.0, 1.0))
@given(POSITIVE, POSITIVE, st.tuples(POSITIVE, POSITIVE), st.tuples(POSITIVE, POSITIVE))
def test_the_parts_add_up_and_the_reverse_has_the_other_sign(
    a: float, b: float, calls: tuple[float, float], work: tuple[float, float]
) -> None:
    parts = split(a, b, calls, work)
    assert isclose(sum(parts), b - a, rel_tol=1e-9, abs_tol=1e-6)
    back = split(b, a, calls[::-1], work[::-1])
    assert back == pytest.approx([-part for part in parts], rel=1e-6, abs=1e-6 * (a + b))


def test_twice_the_calls_are_more_work_and_a_slower_kernel_is_slower_work() -> None:
    (more,) = work_deltas(made((8, 100)), made((8, 100), (8, 100)))
    assert (more.delta_ns, more.more_ns, more.slower_ns) == (100_000, 100_000, 0)
    assert (more.role, more.a_work, more.b_work) == ("matrix products (mm)", 1024, 2048)
    (slower,) = work_deltas(made((8, 100)), made((8, 150)))
    assert (slower.delta_ns, slower.more_ns, slower.slower_ns) == (50_000, 0, 50_000)


def test_other_shapes_are_compared_by_their_flops() -> None:
    (delta,) = work_deltas(made((8, 100)), made((16, 150)))
    mean = log_mean(100_000, 150_000)
    assert delta.more_ns == pytest.approx(mean * log(2), abs=1)
    assert delta.more_ns + delta.slower_ns == delta.delta_ns == 50_000


def test_work_of_one_side_alone_is_added_or_removed() -> None:
    rows = {"Input Dims": [[64]], "Input type": ["float"]}
    other = [op("aten::relu", 0, 10, **rows), launch(1, 1, corr=9), kernel("other", 20, 50, corr=9)]
    removed, added = work_deltas(made((8, 100)), build(step(0, 1000), *other))
    assert (removed.delta_ns, removed.more_ns, removed.slower_ns, removed.b_work) == (-100_000, -100_000, 0, 0)
    assert (added.role, added.delta_ns, added.more_ns, added.a_work) == ("aten::relu", 50_000, 50_000, 0)


def test_what_runs_in_ops_without_a_model_is_not_taken_for_work_that_is_gone() -> None:
    compiled = build(step(0, 1000), launch(20, 1, corr=9), kernel("triton_fused", 100, 50, corr=9))
    assert work_deltas(made((8, 100)), compiled) == ()


def test_a_product_under_another_name_is_the_same_kind_of_work() -> None:
    a = build(step(0, 1000), *product(8, 0, 100, 1))
    rows = {"Input Dims": [[4], [8, 16], [16, 4]], "Input type": ["float", "float", "float"]}
    b = build(step(0, 1000), op("aten::addmm", 0, 10, **rows), launch(1, 1, corr=1), kernel("gemm", 20, 130, corr=1))
    (delta,) = work_deltas(a, b)
    assert (delta.more_ns, delta.slower_ns) == (0, 30_000)


def cpu(*products: tuple[int, int], other: int = 0) -> Trace:
    """A step on a CPU with products of so many rows that take so long, each, and an op without recorded inputs."""
    ops = [
        op("aten::mm", 1000 * index, dur, **{"Input Dims": [[rows, 16], [16, 4]], "Input type": ["float", "float"]})
        for index, (rows, dur) in enumerate(products)
    ]
    end = 1000 * len(products)
    return build(
        step(0, end + sum(dur for _, dur in products) + other), *ops, *([op("custom::op", end, other)] if other else [])
    )


def factors(a: Trace, b: Trace) -> list[list[float]]:
    """Of each op the factors of its calls, work per call and speed."""
    each = of_code("op_work", diff_runs(Run("a", (a,)), Run("b", (b,))))
    return [[round(float(op[f"{what}_ratio"]), 2) for what in ("calls", "per_call", "speed")] for op in each]


def test_without_a_device_the_self_time_of_ops_is_divided() -> None:
    """More rows in every product, the same calls: padding to a fixed length."""
    (delta,) = work_deltas(cpu((10, 100), (20, 200)), cpu((24, 240), (24, 240)))
    assert (delta.a_work, delta.b_work) == (2 * 16 * 4 * 30, 2 * 16 * 4 * 48)
    assert (delta.delta_ns, delta.calls_ns, delta.more_ns, delta.slower_ns) == (180_000, 0, 180_000, 0)
    assert factors(cpu((10, 100), (20, 200)), cpu((24, 240), (24, 240))) == [[1, 1.6, 1]]


def test_launches_on_a_device_that_is_not_recorded_have_no_speed() -> None:
    alone, asks = cpu((10, 100)), launch(5, 3, 1)
    assert len(work_deltas(alone, cpu((10, 300)))) == 1
    shapes = {"Input Dims": [[10, 16], [16, 4]], "Input type": ["float", "float"]}
    launching = [build(step(0, 1000), op("aten::mm", 0, dur, **shapes), asks) for dur in (100, 300)]
    assert work_deltas(*launching) == ()


def test_calls_work_per_call_and_speed_are_three_parts() -> None:
    a, b = cpu((10, 100), (10, 100)), cpu((20, 300), (20, 300), (20, 300))
    (delta,) = work_deltas(a, b)
    mean = log_mean(200_000, 900_000)
    expected = mean * log(3 / 2), mean * log(2), mean * log(3 / 2)
    assert (delta.calls_ns, delta.per_call_ns, delta.slower_ns) == pytest.approx(expected, abs=2)
    assert delta.calls_ns + delta.per_call_ns + delta.slower_ns == delta.delta_ns == 700_000
    assert factors(a, b) == [[1.5, 2, 0.67]]


def test_more_calls_of_a_slow_shape_are_no_loss_of_speed() -> None:
    a, b = cpu((8, 100), (800, 200)), cpu(*[(8, 100)] * 4, (800, 200))
    assert factors(a, b) == [[2.5, 0.41, 1]]
    assert factors(a, cpu(*[(8, 200)] * 4, (800, 400))) == [[2.5, 0.41, 0.51]]


def test_a_slower_op_does_the_same_work_and_without_shapes_nothing_is_said() -> None:
    assert factors(cpu((10, 100)), cpu((10, 300))) == [[1, 1, 0.33]]
    assert factors(*(build(step(0, 1000), op("aten::mm", 0, dur)) for dur in (100, 300))) == []


def test_with_time_in_ops_without_a_model_only_roles_with_as_many_calls_are_compared() -> None:
    (delta,) = work_deltas(cpu((10, 100), other=500), cpu((16, 160), other=500))
    assert (delta.more_ns, delta.slower_ns) == (60_000, 0)
    assert work_deltas(cpu((10, 100), other=500), cpu((10, 100), (10, 100), other=500)) == ()


def test_other_work_that_took_as_long_is_told_where_durations_are_no_evidence() -> None:
    traced = Traced(0, 100_000, 100_000, 1, 1)
    other = WorkDelta("forward", "products", True, 10_000, 10_000, 5, 10, 1.0, 1.0, 0, 6_931, -6_931, is_bound=False)
    (untimed,) = of_code("op_work", op_work(traced, [other], timed=False))
    assert (untimed["op"], untimed["per_call_ratio"], "delta_ns" in untimed) == ("products", 2, False)
    assert not [*op_work(traced, [other])]


def test_a_device_on_one_side_alone_is_not_compared() -> None:
    assert work_deltas(cpu((8, 100)), made((8, 100))) == ()


@pytest.mark.parametrize("timed", [True, False])
def test_where_durations_are_no_evidence_only_other_work_is(timed: bool) -> None:
    traced = Traced(0, 100_000, 110_000, 1, 1)
    other = WorkDelta("forward", "products", True, 10_000, 20_000, 5, 10, 1.0, 1.0, 0, 10_000, 0, is_bound=False)
    same = WorkDelta("forward", "copies", False, 10_000, 20_000, 5, 5, 1.0, 1.0, 0, 0, 10_000, is_bound=False)
    ops = of_code("op_work", op_work(traced, [other, same], timed=timed))
    assert [op["op"] for op in ops] == ["products", *["copies"] * timed]
    assert {"delta_ns" in op and "speed_ratio" in op for op in ops} == {timed}
    assert ops[0]["per_call_ratio"] == 2


def batch_of(num: int, dur: int) -> Trace:
    """A step of twice so long and 40 us: a product and a batched one of `num` samples."""
    return build(step(0, 2 * dur + 40), *product(num, 0, dur, 1), *batched(num, dur))


def batched(num: int, dur: int) -> list[Event]:
    shapes = {"Input Dims": [[num, 16, 8], [num, 8, 4]], "Input type": ["float", "float"]}
    return [op("aten::bmm", 12, 5, **shapes), launch(13, 1, corr=2), kernel("second", 20 + dur, dur, corr=2)]


def common_factors(a: Trace, b: Trace) -> list[list[float]]:
    """The factors of all work and of the time, and by how many percent more that is for the same work."""
    each = of_code("work_factor", diff_runs(Run("a", (a,)), Run("b", (b,))))
    keys = ("work_ratio", "time_ratio", "per_work_delta_pct")
    return [[round(float(factor[key]), 2) for key in keys] for factor in each]


def factor_of(work: Sequence[WorkDelta], a_ns: int, b_ns: int) -> list[Mapping[str, Measure]]:
    run = Run("", (batch_of(8, 100),))
    diff = diff_runs(run, run)
    assert diff.steps is not None
    steps = replace(diff.steps, a_ns=a_ns, b_ns=b_ns)
    return of_code("work_factor", work_factor(replace(diff, work=tuple(work), cells=(), steps=steps)))


def test_a_larger_batch_is_told_with_the_time_per_flop() -> None:
    assert common_factors(batch_of(8, 100), batch_of(64, 740)) == [[8, 6.33, -20.83]]
    assert common_factors(batch_of(64, 740), batch_of(8, 100)) == [[0.12, 0.16, 26.32]]
    assert common_factors(batch_of(8, 100), batch_of(8, 140)) == []


@pytest.mark.parametrize(("us", "is_told"), [(150, True), (250, False)])
def test_where_most_of_what_computes_has_no_model_no_factor_is_told(us: int, is_told: bool) -> None:
    """As where graphs are replayed: two ops of 100 us each tell nothing of the rest."""
    sides = [
        build(step(0, 2 * dur + us + 90), *product(num, 0, dur, 1), *batched(num, dur), launch(30, 1, 3), unknown)
        for num, dur in ((8, 100), (64, 740))
        for unknown in (kernel("custom", 30 + 2 * dur, us, 3),)
    ]
    assert bool(common_factors(*sides)) == is_told


def test_where_ops_change_by_several_factors_none_is_told() -> None:
    (of_products, of_batches) = work_deltas(batch_of(8, 100), batch_of(64, 740))
    assert factor_of((of_products, of_batches), 1, 7)
    assert factor_of((of_products, replace(of_batches, b_work=of_batches.a_work)), 1, 7) == []
    assert factor_of((of_products,), 1, 7) == []  # a single op may be padded
    relu = replace(of_products, role="aten::relu", is_flops=False, b_work=of_products.a_work)
    assert factor_of((of_products, of_batches, relu), 1, 7)
    assert factor_of((of_products, of_batches, *[relu] * 3), 1, 7) == []
    update = replace(relu, phase="optimizer")
    assert factor_of((of_products, of_batches, update), 1, 7)
    assert factor_of((of_products, of_batches, *[update] * 3), 1, 7) == []  # most of the step has no FLOPs


def test_of_ops_without_flops_the_bytes_tell() -> None:
    (of_products, of_batches) = work_deltas(batch_of(8, 100), batch_of(64, 740))
    of_bytes = [replace(each, is_flops=False) for each in (of_products, of_batches)]
    (factor,) = factor_of(of_bytes, 100, 740)
    assert (factor["work"], factor["work_ratio"], factor["time_ratio"]) == ("bytes", 8, 7.4)
    update = replace(of_bytes[0], phase="optimizer", b_work=of_bytes[0].a_work)
    assert factor_of((*of_bytes, update), 100, 740)


def cpu_steps(rows: int, *durs: int) -> Run:
    """Steps on a CPU with one product of so many rows, which takes so long in each."""
    shapes = {"Input Dims": [[rows, 16], [16, 4]], "Input type": ["float", "float"]}
    starts = [sum(durs[:number]) for number in range(len(durs))]
    events = [
        event
        for number, (start, dur) in enumerate(zip(starts, durs, strict=True))
        for event in (step(start, dur, number), op("aten::mm", start, dur, **shapes))
    ]
    return Run("", (build(*events),))


@pytest.mark.parametrize(("rows", "per_call"), [(8, []), (16, [2])])
def test_no_op_is_slower_where_steps_do_not_tell_the_sides_apart(rows: int, per_call: list[float]) -> None:
    """Two runs of the same code had a copy at "0.62 times the speed"; other work is a difference in any case."""
    diff = diff_runs(cpu_steps(8, 400, 800, 400, 800), cpu_steps(rows, 500, 900, 500, 900))
    assert diff.answer.code == "within_scatter"
    ops = of_code("op_work", diff)
    assert [each["per_call_ratio"] for each in ops] == per_call
    assert not any("speed_ratio" in each for each in ops)
    (slower,) = of_code("op_work", diff_runs(cpu_steps(8, 400, 400), cpu_steps(8, 600, 600)))
    assert (slower["delta_ns"], slower["per_call_ratio"]) == (200_000, 1)
    assert slower["speed_ratio"] == pytest.approx(2 / 3)
