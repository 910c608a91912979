"""Events in few steps, such as garbage collections: the typical step is without them, the mean has rate times size.

A median of differences does not see what happens once in fifty steps, and the steps of an arm have too few such events
for an interval of their mean: they are few, long and unlike each other. So they are taken out of the steps where they
fell, and come back as a compound Poisson sum, with the interval of Fay and Feuer (Statistics in Medicine 16, 1997). A
shared event falls into whichever step is next: each arm is charged what its steps bring on. `benchmarks/stats.py`
prints how often that claims a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.model import PairedEvents, Pairs
from traceq.stats.hodges_lehmann import Interval, Level, Shift
from traceq.stats.limits import TYPICAL

_Ends = tuple[float, float, float]
"""A value and the ends of its interval."""


@frozen
class RareEvents:
    """Events of one kind: `rate_a`, `rate_b` per step of an arm, `size_ns` each, and what B's cost more than A's.

    Of shared events the rates are what each arm brings on. `cost_a_ns`, `cost_b_ns`: per step.
    """

    name: str
    num: int
    size_ns: int
    rate_a: float
    rate_b: float
    cost_a_ns: int
    cost_b_ns: int
    ci95_ns: Interval
    ci90_ns: Interval

    @property
    def delta_ns(self) -> int:
        """B's cost per step minus A's."""
        return self.cost_b_ns - self.cost_a_ns


def typical_pairs(pairs: Pairs, level: Level, b_scale: float = 1.0) -> tuple[Pairs, tuple[RareEvents, ...]]:
    """Return the pairs without rare events, and these by cost; `b_scale` scales B's events, as its halves are already.

    On several ranks, which wait for each other, each is shorter by the longest pause. All are shorter by no more than
    halves with events take beyond the median of their arm: a device may have enough to do meanwhile.
    """
    events = pairs.events
    if events is None or not pairs.b_second.size:
        return pairs, ()
    is_b = np.column_stack([~pairs.b_second, pairs.b_second])
    scale = np.where(is_b, b_scale, 1.0)
    num = events.num.max(axis=0)
    is_rare = np.max([(num[side] > 0).mean(axis=0) for side in (is_b, ~is_b)], axis=0) < TYPICAL
    pause = events.counted_ns.max(axis=0)[..., is_rare].sum(axis=-1) * scale
    halves = np.stack([pairs.first_ns, pairs.second_ns], axis=-1)
    paid = _part_paid(halves.max(axis=0), pause, is_b)
    halves = np.maximum(0, halves - np.rint(paid * pause)).astype(np.int64)
    rows = [
        _row(events, kind, is_b, paid, scale, level)
        for kind in np.flatnonzero(is_rare & (num > 0).any((0, 1))).tolist()
    ]
    rows.sort(key=lambda row: -abs(row.delta_ns))
    return replace(pairs, first_ns=halves[..., 0], second_ns=halves[..., 1]), tuple(rows)


def with_rare_events(typical: Shift, rows: Sequence[RareEvents], theta_ns: float) -> Shift | None:
    """Return the shift of the mean, typical steps with rare events; None where these do not differ.

    They do beyond chance, and maybe by the threshold: less is no second answer.
    """
    if not (rows and typical.ci95 and typical.ci90):
        return None
    low, high = _sum([(row.delta_ns, *row.ci95_ns) for row in rows])[1:]
    if low <= 0 <= high or max(-low, high) < theta_ns:
        return None
    ci95 = _sum([(typical.delta, *typical.ci95), *((row.delta_ns, *row.ci95_ns) for row in rows)])
    ci90 = _sum([(typical.delta, *typical.ci90), *((row.delta_ns, *row.ci90_ns) for row in rows)])
    return replace(
        typical,
        delta=round(ci95[0]),
        mean=typical.mean + sum(row.delta_ns for row in rows),
        ci95=(round(ci95[1]), round(ci95[2])),
        ci90=(round(ci90[1]), round(ci90[2])),
        z_beyond=_z_beyond(ci95, theta_ns, typical.level.z95),
        z_beyond_0=_z_beyond(ci95, 0.0, typical.level.z95),
    )


def _part_paid(halves: NDArray[np.int64], pause: NDArray[np.float64], is_b: NDArray[np.bool_]) -> float:
    """Return which part of the pauses makes halves longer than the median of their arm, 0 to 1."""
    has_pause = pause > 0
    if not has_pause.any():
        return 1.0
    usual = np.where(is_b, np.median(halves[is_b]), np.median(halves[~is_b]))
    return float(np.clip((halves - usual)[has_pause].sum() / pause[has_pause].sum(), 0, 1))


def _row(
    events: PairedEvents, kind: int, is_b: NDArray[np.bool_], paid: float, scale: NDArray[np.float64], level: Level
) -> RareEvents:
    """Return the events of a kind, of whose ns the part `paid` makes steps longer."""
    num, cost = events.num.max(axis=0)[..., kind], paid * events.ns.max(axis=0)[..., kind]
    num_steps, brought = np.maximum(1, events.num_steps.max(axis=0)), np.maximum(0, events.brought.mean(axis=0))
    if events.kinds[kind].is_shared and brought.any():
        per_step = brought * scale / num_steps
        each = float(num.sum() / brought.sum())
        rates = [each * float(per_step[side].mean()) for side in (~is_b, is_b)]
        costs = [rate * float(cost.sum() / num.sum()) for rate in rates]
        ends = [_charged(cost, brought, per_step[is_b] - per_step[~is_b], z) for z in (level.z95, level.z90)]
    else:
        cost = cost * scale
        rates = [float(num[side].sum() / num_steps[side].sum()) for side in (~is_b, is_b)]
        costs = [float(cost[side].sum() / num_steps[side].sum()) for side in (~is_b, is_b)]
        ends = [_difference(cost, num_steps, is_b, z) for z in (level.z95, level.z90)]
    return RareEvents(
        name=events.kinds[kind].name,
        num=int(num.sum()),
        size_ns=round(float(cost.sum() / num.sum())),
        rate_a=rates[0],
        rate_b=rates[1],
        cost_a_ns=round(costs[0]),
        cost_b_ns=round(costs[1]),
        ci95_ns=ends[0],
        ci90_ns=ends[1],
    )


def _charged(cost: NDArray[np.float64], brought: NDArray[np.float64], more: NDArray[np.float64], z: float) -> Interval:
    """Return the interval of what B's steps bring on more than A's, float64[P] per pair, at the cost that each has."""
    mean, error = float(more.mean()), float(more.std(ddof=1)) / math.sqrt(more.size) if more.size > 1 else math.inf
    each = _poisson_sum(cost, float(brought.sum()), z, float(cost.max()))
    return _rounded(_product(each, (mean, mean - z * error, mean + z * error)))


def _difference(cost: NDArray[np.float64], num_steps: NDArray[np.int64], is_b: NDArray[np.bool_], z: float) -> Interval:
    """Return the interval of the cost of events per step of B minus that of A."""
    b, (a, a_low, a_high) = (
        _poisson_sum(cost[side], float(num_steps[side].sum()), z, float(cost.max())) for side in (is_b, ~is_b)
    )
    return _rounded(_sum([b, (-a, -a_high, -a_low)]))


def _rounded(ends: _Ends) -> Interval:
    return math.floor(ends[1]), math.ceil(ends[2])


def _poisson_sum(sizes: NDArray[np.float64], exposure: float, z: float, largest: float) -> _Ends:
    """Return the sum of sizes per exposure with its interval, as of a compound Poisson sum (Fay and Feuer).

    The upper end allows for one more of the largest size.
    """
    total, squares = float(sizes.sum()), float((sizes**2).sum())
    low = 0.0 if not total else squares / total * _gamma_quantile(total**2 / squares, -z)
    total_up, squares_up = total + largest, squares + largest**2
    high = 0.0 if not total_up else squares_up / total_up * _gamma_quantile(total_up**2 / squares_up, z)
    return total / exposure, low / exposure, high / exposure


def _gamma_quantile(shape: float, z: float) -> float:
    """Return the quantile of a gamma distribution at that of the normal one (Wilson and Hilferty 1931)."""
    return float(shape * max(0.0, 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3)


def _sum(parts: Sequence[_Ends]) -> _Ends:
    """Return the sum of independent values: distances of the ends add up by squares (MOVER, Donner and Zou 2012)."""
    total = sum(value for value, _, _ in parts)
    below = math.hypot(*(value - low for value, low, _ in parts))
    above = math.hypot(*(high - value for value, _, high in parts))
    return total, total - below, total + above


def _product(size: _Ends, factor: _Ends) -> _Ends:
    """Return the product of a positive value and another one, by first order in both."""
    value, (mean, low, high) = size[0] * factor[0], factor
    down, up = (size[0] - size[1], size[2] - size[0])[:: 1 if mean > 0 else -1]
    below = math.hypot(size[0] * (mean - low), mean * down)
    above = math.hypot(size[0] * (high - mean), mean * up)
    return value, value - below, value + above


def _z_beyond(ends: _Ends, bound: float, z: float) -> float:
    """Return the largest z at which the interval is beyond ±bound, its ends moving in proportion; 0 if it never is."""
    value, low, high = ends
    near = value - low if value > 0 else high - value
    return max(0.0, (abs(value) - bound) / near * z) if near else 0.0
