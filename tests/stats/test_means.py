"""Means of few steps are apart seldom by chance, and often where they are."""

from __future__ import annotations

import numpy as np
import pytest

from traceq.stats.means import are_means_apart


def share_apart(shift: float, num_a: int, num_b: int) -> float:
    """Share of 2,000 pairs of samples, one of which scatters five times as much, whose means are apart."""
    rng = np.random.default_rng(5)
    pairs = ((rng.normal(100, 1, num_a), rng.normal(100 + shift, 5, num_b)) for _ in range(2_000))
    return sum(are_means_apart(a, b) for a, b in pairs) / 2_000


@pytest.mark.parametrize(("num_a", "num_b"), [(4, 4), (4, 12), (12, 4)])
def test_equal_means_are_apart_in_at_most_one_of_twenty_pairs(num_a: int, num_b: int) -> None:
    assert share_apart(0, num_a, num_b) <= 0.06
    assert share_apart(15, num_a, num_b) >= 0.9


def test_values_without_scatter_are_apart_where_they_differ() -> None:
    assert are_means_apart(np.full(4, 1.0), np.full(4, 2.0))
    assert not are_means_apart(np.full(4, 1.0), np.full(4, 1.0))
