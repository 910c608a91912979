"""Microseconds become nanoseconds from their digits: nothing passes through a float64."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceq.kineto.columns import INVALID_NS, nanoseconds

INVALID = int(INVALID_NS)


def one(text: str) -> int:
    return int(nanoseconds([text.encode()])[0])


def half_up(text: str) -> int:
    """Ns by exact fractions."""
    return math.floor(Fraction(text) * 1000 + Fraction(1, 2))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("4458677009853.422", 4458677009853422),
        ("1733961600123456.789", 1733961600123456789),  # a float64 gives ...456.75
        ("1733961600123456", 1733961600123456000),
        ("0.001", 1),
        ("5.", 5000),
        ("7.5", 7500),
        ("0.0004999", 0),
        ("0.0005", 1),
        ("12.3456789", 12346),
        ("-3.25", -3250),
        ("1.5e3", 1500000),
        ("25E-1", 2500),
        ('"1234.567"', 1234567),
        ("0.00049999999999999999999999999999999999", 0),
        ("1e-999999999999", 0),
    ],
)
def test_every_digit_counts(text: str, ns: int) -> None:
    assert one(text) == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "Infinity",
        "null",
        "true",
        '""',
        '"soon"',
        "[1]",
        "1e17",
        "1e999999",
        "1e99999999999999999999",
        "9" * 40,
    ],
)
def test_what_is_no_time_is_invalid(text: str) -> None:
    assert one(text) == INVALID


digits = st.text("0123456789", min_size=1, max_size=15)
decimal = st.builds("{}.{}".format, digits, st.text("0123456789", min_size=1, max_size=40)) | digits
number = st.builds("{}{}".format, st.sampled_from(["", "-"]), decimal)
scientific = st.builds("{}e{}".format, number, st.integers(-30, 2))


@given(st.lists(decimal, max_size=8))
def test_plain_decimals_of_any_length_round_half_up(texts: list[str]) -> None:
    assert nanoseconds([text.encode() for text in texts]).tolist() == [half_up(text) for text in texts]


@given(st.lists(number | scientific | st.just("NaN"), max_size=8))
def test_a_number_reads_the_same_in_any_company(texts: list[str]) -> None:
    expected = [INVALID if text == "NaN" else half_up(text) for text in texts]
    expected = [ns if abs(ns) <= 8 * 10**18 else INVALID for ns in expected]
    assert nanoseconds([text.encode() for text in texts]).tolist() == expected
