"""Device time of ops divided in more work and slower work."""

from __future__ import annotations

from math import isclose, log

import pytest
from builder import Event, build, kernel, launch, op, step
from hypothesis import given
from hypothesis import strategies as st

from traceq.compare.work_deltas import log_mean, split, work_deltas
from traceq.model import Trace

POSITIVE = st.floats(1, 1e9)


def product(rows: int, start: int, dur: int, corr: int, name: str = "aten::mm") -> list[Event]:
    shapes = {"Input Dims": [[rows, 16], [16, 4]], "Input type": ["float", "float"]}
    return [op(name, start, 10, **shapes), launch(start + 1, 1, corr=corr), kernel("gemm", start + 20, dur, corr=corr)]


def made(*products: tuple[int, int]) -> Trace:
    """A step with a product of so many rows that takes so long, each."""
    rows = [event for index, (num, dur) in enumerate(products) for event in product(num, 1000 * index, dur, index + 1)]
    return build(step(0, 1000 * len(products) + 1000), *rows)


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_the_parts_add_up_and_the_reverse_has_the_other_sign(a: float, b: float, work_a: float, work_b: float) -> None:
    more, slower = split(a, b, work_a, work_b)
    assert isclose(more + slower, b - a, rel_tol=1e-9, abs_tol=1e-6)
    back = split(b, a, work_b, work_a)
    assert isclose(back[0], -more, rel_tol=1e-6, abs_tol=1e-6 * (a + b))


def test_twice_the_calls_are_more_work_and_a_slower_kernel_is_slower_work() -> None:
    (more,) = work_deltas(made((8, 100)), made((8, 100), (8, 100)))
    assert (more.delta_ns, more.more_ns, more.slower_ns) == (100_000, 100_000, 0)
    assert (more.role, more.a_work, more.b_work) == ("matrix products", 1024, 2048)
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
