"""Change points of a series: what Otava finds, and what is known of the runs around it."""

from __future__ import annotations

import sys
from datetime import datetime
from itertools import repeat
from unittest.mock import patch

import numpy as np
import pytest

from traceq.errors import TraceqError
from traceq.history.events import Change, Series, change_points
from traceq.history.store import Row
from traceq.units import Unit

STEP = 40e6
JITTER = np.resize([0.001, -0.002, 0.0015, 0.0, -0.001, 0.0025, -0.0015], 40)
"""Noise of a few thousandths."""


def changes(
    values: object, *, unit: Unit = Unit.NS, half_widths: object = None, measure: str = "step"
) -> tuple[Change, ...]:
    halves = repeat(None) if half_widths is None else half_widths
    rows = tuple(
        Row(
            *("r", datetime(2026, 1, 1), "main", "", "", "", measure, None, float(value)),
            *((None, None) if half is None else (float(value - half), float(value + half))),
            unit.value,
        )
        for value, half in zip(values, halves, strict=False)  # type: ignore[call-overload]
    )
    return change_points(Series("", measure, unit, rows, tuple(range(len(rows)))), STEP)


def places(*given: object, **more: object) -> list[int]:
    return [change.place for change in changes(*given, **more)]  # type: ignore[arg-type]


def test_a_change_is_the_run_from_which_it_is_with_the_means_of_both_sides() -> None:
    (change,) = changes(STEP * (1 + JITTER[:12] + 0.03 * (np.arange(12) >= 8)))
    assert (change.place_before, change.place) == (7, 8)
    assert change.delta_pct == pytest.approx(3, abs=0.1)
    assert change.after - change.before == change.delta


def test_a_regression_that_is_reverted_is_two_changes() -> None:
    number = np.arange(30)
    assert places(STEP * (1 + JITTER[:30] + 0.05 * ((number >= 10) & (number < 20)))) == [10, 20]
    assert places([0] * 4 + [1] * 4 + [0] * 4, unit=Unit.MEAN) == [4, 8]


def test_a_count_changes_with_its_first_run_and_a_time_with_its_second() -> None:
    assert places([2] * 6 + [3], unit=Unit.MEAN) == [6]
    times = STEP * (1 + JITTER[:8] + 0.1 * (np.arange(8) >= 6))
    assert (places(times[:7]), places(times)) == ([], [6])


def test_one_op_of_thousands_is_a_change() -> None:
    assert places([4000] * 6 + [4001] * 2, unit=Unit.MEAN) == [6]


def test_a_count_that_differs_from_run_to_run_has_no_changes() -> None:
    assert places([4, 10, 4, 4, 10, 4, 10, 4, 4, 4], unit=Unit.MEAN) == []
    assert places(4000 + (np.random.default_rng(1).random(100) < 0.3), unit=Unit.MEAN) == []
    assert places([4000] * 6 + [4001] + [4000] * 6, unit=Unit.MEAN) == []


@pytest.mark.parametrize("values", [[], [1], [1, 1, 1, 1], [1, 2]])
def test_what_is_too_short_or_always_the_same_has_no_changes(values: list[int]) -> None:
    assert places(values, unit=Unit.MEAN) == []


def test_a_part_that_changes_by_little_of_the_step_has_not_changed() -> None:
    part = 1e6 * (1 + JITTER[:20] + 0.5 * (np.arange(20) >= 10))
    assert places(part, measure="zero_grad") == []
    assert places(3 * part, measure="zero_grad") == [10]


def test_a_change_within_the_intervals_of_its_runs_is_none() -> None:
    values = STEP * (1 + JITTER[:8] + 0.03 * (np.arange(8) >= 4))
    assert places(values, half_widths=[0.01 * STEP] * 8) == [4]
    assert places(values, half_widths=[0.06 * STEP] * 8) == []


def test_a_run_with_a_wide_interval_is_left_out() -> None:
    values, half_widths = STEP * (1 + JITTER[:8]), np.full(8, 0.004 * STEP)
    values[6:] *= 1.4
    assert places(values, half_widths=half_widths) == [6]
    half_widths[6:] *= 20
    assert places(values, half_widths=half_widths) == []


def test_a_run_that_both_beside_it_contradict_hides_no_change() -> None:
    values = STEP * (1 + JITTER[:20] + 0.03 * (np.arange(20) >= 10))
    values[5] *= 0.6
    assert places(values) == [10]


def test_without_otava_one_line_says_what_to_install() -> None:
    with patch.dict(sys.modules, {"otava.analysis": None}), pytest.raises(TraceqError, match="apache-otava"):
        changes([1, 2, 3], unit=Unit.MEAN)
