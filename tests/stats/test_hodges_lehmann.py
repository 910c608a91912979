"""The shift between two samples, where their differences are sorted, and where there are too many to be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceq.stats import hodges_lehmann
from traceq.stats.hodges_lehmann import location_of_pairs, rank_of_end, shift_between, shift_of_pairs


@pytest.mark.parametrize("most_in_memory", [2**22, 0], ids=["sorted", "selected"])
def test_estimate_and_interval_are_order_statistics_of_all_differences(
    most_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hodges_lehmann, "_MOST_IN_MEMORY", most_in_memory)
    rng, num_intervals = np.random.default_rng(1), 0
    for _ in range(300):
        scale = int(rng.choice([2, 10, 1_000, 10**9]))
        x, y = (rng.integers(-scale, scale + 1, rng.integers(1, 40)) for _ in range(2))
        parts, theta = int(rng.integers(1, 3)), float(rng.choice([0, 0.5, 1.5, 2.5, 3, 100.3]))
        shift = shift_between(x, y, parts=parts, theta_ns=theta)
        ordered = sorted(int(a) - int(b) for a in x for b in y)
        assert shift.delta == round(float(np.median(ordered)) / parts)
        k = rank_of_end(len(x), len(y), shift.level.z95)
        assert shift.ci95 == ((round(ordered[k - 1] / parts), round(ordered[-k] / parts)) if k else None)
        num_intervals += k > 0
        for bound, z in ((theta, shift.z_beyond), (0.0, shift.z_beyond_0)):
            rounded = [round(each / parts) for each in ordered]
            left_out = min(sum(each <= bound for each in rounded), sum(each >= -bound for each in rounded))
            error = (len(x) * len(y) * (len(x) + len(y) + 1) / 12) ** 0.5
            assert z == pytest.approx(max(0.0, (len(ordered) / 2 - left_out - 1) / error))
    assert num_intervals > 200


def test_fifty_thousand_pairs_of_either_order_need_no_place_for_each_difference() -> None:
    """2,500 million differences: 20 GB if each had a place."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(50_300, 1_000, 50_000).astype(np.int64), rng.normal(50_000, 1_000, 50_000).astype(np.int64)
    shift = shift_between(x, y)
    assert shift.ci95 is not None
    assert shift.ci95[0] < 300 < shift.ci95[1] < shift.ci95[0] + 40


@given(st.data())
def test_a_change_saves_exactly_the_step_if_nothing_is_left_of_it_and_never_more(data: st.DataObject) -> None:
    """Steps of two kinds, of which the median of the arm is that of the short ones, included."""
    num = data.draw(st.integers(2, 12))
    b_second = np.array([True, False, *data.draw(st.lists(st.booleans(), min_size=num, max_size=num))])
    steps = st.lists(st.sampled_from([20, 21, 22, 900, 950]), min_size=num + 2, max_size=num + 2)
    a, b = (np.array(data.draw(steps), np.int64) for _ in range(2))
    b_less = np.minimum(a, b)
    a_ns = location_of_pairs(a, b_second)
    for left in (np.zeros_like(a), b_less):
        change = np.where(b_second, left - a, a - left)
        delta = shift_of_pairs(change, b_second).delta
        assert -a_ns <= delta <= 0
        assert delta == -a_ns or left.any()
    constant = np.full_like(a, 7)
    assert (
        abs(
            shift_of_pairs(np.where(b_second, 7 - a, a - 7), b_second).delta
            - (location_of_pairs(constant, b_second) - a_ns)
        )
        <= 1
    )
