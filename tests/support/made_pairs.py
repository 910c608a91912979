"""Pairs of step times whose difference is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.model import Pairs

__all__ = ["MS", "orders_by_statistic", "pairs_of", "recording", "simulate"]

MS = 1_000_000


def pairs_of(first: object, second: object, b_second: object, *, a: str = "off", b: str = "on") -> Pairs:
    """Pairs of one rank, or of as many ranks as `first` has rows."""
    halves = [np.atleast_2d(np.array(half, np.int64)) for half in (first, second)]
    return Pairs(a, b, np.array(b_second, np.bool_), halves[0], halves[1])


def recording(a_ns: int, b_ns: int, *, num: int = 16, jitter_ns: int = 0) -> Pairs:
    """`num` alternating pairs; the jitter of the halves is a fixed pattern of signs."""
    b_second = np.arange(num) % 2 == 0
    jitter = jitter_ns * np.array([1, -1, -1, 1, 0])[np.arange(2 * num) % 5].reshape(num, 2)
    first = np.where(b_second, a_ns, b_ns) + jitter[:, 0]
    second = np.where(b_second, b_ns, a_ns) + jitter[:, 1]
    return pairs_of(first, second, b_second)


def orders_by_statistic(m: int, n: int) -> list[int]:
    """Number of orders of m and n values with 0, 1, ... of the m * n pairs inverted (the Mann-Whitney statistic)."""
    counts = {(i, j): [1] if not i or not j else [] for i in range(m + 1) for j in range(n + 1)}
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            last_is_x, last_is_y = [0] * j + counts[i - 1, j], counts[i, j - 1]
            width = max(len(last_is_x), len(last_is_y))
            padded = [series + [0] * (width - len(series)) for series in (last_is_x, last_is_y)]
            counts[i, j] = [x + y for x, y in zip(*padded, strict=True)]
    return counts[m, n]


def simulate(rng: np.random.Generator, *, delta_ns: int, num_pairs: int = 48) -> Pairs:
    """100 ms steps, 1 % noise of autocorrelation 0.7, 2 % of the steps 1.5 to 5 times as long; random order."""
    noise: NDArray[np.float64] = rng.normal(scale=MS, size=2 * num_pairs)
    for i in range(1, len(noise)):
        noise[i] = 0.7 * noise[i - 1] + np.sqrt(1 - 0.7**2) * noise[i]
    stalls = (rng.random(len(noise)) < 0.02) * rng.uniform(50 * MS, 400 * MS, len(noise))
    b_second = np.concatenate([rng.permutation(np.arange(16) < 8) for _ in range(num_pairs // 16)])
    is_b = np.column_stack([~b_second, b_second]).ravel()
    halves = (100 * MS + noise + stalls + delta_ns * is_b).reshape(num_pairs, 2)
    return pairs_of(halves[:, 0], halves[:, 1], b_second)
