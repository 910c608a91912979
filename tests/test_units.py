"""How numbers read for people: three digits, a unit, and nothing that could be mistaken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceq.units import Unit, bar, format_value, ranks_of, shades, sparkline


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, Unit.NS, "0"),
        (999, Unit.NS, "999 ns"),
        (1_000, Unit.NS, "1.00 us"),
        (34_560, Unit.NS, "34.6 us"),
        (3_600_000, Unit.NS, "3.60 ms"),
        (-80_000, Unit.NS, "-80.0 us"),
        (125_949_000_000, Unit.NS, "126 s"),
        (12_500, Unit.DELTA_NS, "+12.5 us"),
        (-12_500, Unit.DELTA_NS, "-12.5 us"),
        (0, Unit.DELTA_NS, "0"),
        (1023, Unit.BYTES, "1023 B"),
        (1536, Unit.BYTES, "1.50 KiB"),
        (3 * 2**30, Unit.BYTES, "3.00 GiB"),
        (0.172, Unit.PERCENT, "0.17 %"),
        (12.34, Unit.PERCENT, "12.3 %"),
        (1.5, Unit.DELTA_PERCENT, "+1.5 %"),
        (217_789.4, Unit.DELTA_PERCENT, "+217,789.4 %"),
        (-0.006, Unit.DELTA_PERCENT, "-0.01 %"),
        (-0.004, Unit.DELTA_PERCENT, "0.00 %"),
        (0.004, Unit.DELTA_PERCENT, "0.00 %"),
        (-0.004, Unit.PERCENT, "0.00 %"),
        (12345, Unit.COUNT, "12,345"),
        (2.0, Unit.MEAN, "2"),
        (2.333, Unit.MEAN, "2.33"),
        (41.26, Unit.GBPS, "41.3 GB/s"),
        (None, Unit.NS, ""),
        (True, Unit.COUNT, "yes"),
        ("device", Unit.TEXT, "device"),
    ],
)
def test_a_number_reads_like_this(value: str | float | None, unit: Unit, text: str) -> None:
    assert format_value(value, unit) == text


SIZES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def read(ns: int) -> float:
    """The ns that a duration's text stands for."""
    number, _, unit = format_value(ns, Unit.NS).partition(" ")
    return float(number.replace(",", "")) * SIZES[unit or "ns"]


@given(st.integers(-(10**14), 10**14))
def test_a_duration_is_off_by_no_more_than_half_a_percent(ns: int) -> None:
    assert abs(read(ns) - ns) <= 0.005 * abs(ns)


@given(st.integers(0, 10**14), st.integers(0, 10**14))
def test_a_longer_duration_never_reads_shorter(a: int, b: int) -> None:
    assert read(min(a, b)) <= read(max(a, b))


@given(st.integers(1, 10**12 - 10**9) | st.sampled_from([999_499, 999_500, 999_999, 9_995, 9_994, 99_950]))
def test_a_duration_under_a_quarter_hour_has_three_digits_and_no_thousands(ns: int) -> None:
    number = format_value(ns, Unit.NS).partition(" ")[0]
    assert len(number.replace(".", "")) == 3 or ns < 1_000


@pytest.mark.parametrize(
    ("percent", "drawn"), [(0, ""), (100, "████"), (50, "██"), (37.5, "█▌"), (1, ""), (140, "████"), (-5, "")]
)
def test_a_bar_is_filled_to_an_eighth_of_a_cell(percent: float, drawn: str) -> None:
    assert bar(percent, 4) == drawn


def test_a_curve_stands_on_zero_and_keeps_what_sticks_out() -> None:
    assert sparkline([8, 8, 16, 8]) == "▅▅█▅"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([1] * 99 + [2], width=10) == "▅▅▅▅▅▅▅▅▅█"


def test_cells_are_darker_for_more_and_a_dot_below_a_tenth() -> None:
    assert shades([-3, 0, 0.09, 0.1, 0.24, 0.25, 0.5, 0.75, 1]) == "···░░▒▓██"
    assert shades([]) == ""


def test_a_world_of_one_is_not_claimed() -> None:
    """A trace may lack its size."""
    assert ranks_of([0], 1) == "rank 0"
    assert ranks_of([0, 1, 5], 8) == "ranks 0-1, 5 of 8"
