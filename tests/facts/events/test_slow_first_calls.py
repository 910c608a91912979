"""First calls of ops that take far longer than later ones."""

from __future__ import annotations

import pytest
from builder import Event, build, kernel, launch, op, row, step

from traceq.analysis.registry import analyze
from traceq.facts.events.slow_first_calls import slow_first_calls
from traceq.model import Run, Trace


def convolutions(first_us: float, *later_us: float) -> list[Event]:
    """Convolutions one after the other, each inside another op, with 10 us in between."""
    rows, start = list[Event](), 0.0
    for us in (first_us, *later_us):
        rows += [op("aten::conv2d", start, us), op("aten::cudnn_convolution", start + 0.01 * us, 0.98 * us)]
        start += us + 10
    return rows


def names(trace: Trace) -> list[str]:
    return [trace.events.strings[name] for name in trace.events.name[slow_first_calls(trace)].tolist()]


@pytest.mark.parametrize(
    ("us", "is_slow"),
    [
        ((5000, 90, 100, 110, 2000), True),
        ((5000, 90, 100, 110), False),  # three later calls do not tell
        ((5000, 600, 600, 600, 600), False),
        ((900, 10, 10, 10, 10), False),
        ((100, 5000, 100, 100, 100, 100), False),  # not the first, and not a hundred times
        ((100, 15000, 100, 100, 100, 100), True),  # compiled for what the first call saw
        ((100, 15000, 100, 100, 100), False),
        ((100, 100, 15000, 100, 100, 100, 100), True),
        ((100, 100, 100, 15000, 100, 100, 100, 100), False),
    ],
)
def test_a_first_call_is_slow_beside_the_median_of_later_ones(us: tuple[float, ...], is_slow: bool) -> None:
    assert names(build(*convolutions(*us))) == ["aten::conv2d", "aten::cudnn_convolution"] * is_slow


def test_both_of_two_slow_calls_are_slow() -> None:
    assert names(build(*convolutions(5000, 15000, *[100] * 9))) == ["aten::conv2d", "aten::cudnn_convolution"] * 2


def host_bound(*us: float, more: tuple[Event, ...] = ()) -> str:
    """The finding on steps whose device waits for these convolutions, of which the first step has none."""
    rows, start = [step(-20, 20, 0), launch(-15, 2, 99), kernel("add", -12, 5, 99), *convolutions(*us)], 0.0
    for number, each in enumerate(us, 1):
        rows += [launch(start + 0.9 * each, 2, number), kernel("conv", start + each, 10, number)]
        start += each + 10
    (finding,) = (
        each
        for each in analyze(Run("", (build(*rows, step(0, start, 1), *more),)), "partition").findings
        if each.code == "host_bound"
    )
    return finding.text


def test_host_bound_time_in_a_first_call_is_no_saving_of_later_steps() -> None:
    most = "the host is in first calls of ops, most in aten::cudnn_convolution, once: "
    assert host_bound(5000, 100, 100, 100, 100).endswith(f": for 4.50 ms of it {most}trace later steps")
    text = host_bound(1500, *[120] * 30)
    assert f"; for 1.35 ms of it {most}" in text
    assert "; beyond that a host that takes no time saves " in text
    assert "first calls" not in host_bound(1500, *[120] * 60)


@pytest.mark.parametrize(
    ("us", "most"), [(3000, "Buffer Request (profiler overhead)"), (2000, "aten::cudnn_convolution")]
)
def test_a_first_call_in_which_the_profiler_works_is_slow_by_that(us: float, most: str) -> None:
    text = host_bound(5000, 100, 100, 100, 100, more=(row("overhead", "Buffer Request", 1000, us, tid=7),))
    assert f"in first calls of ops, most in {most}, once: " in text
