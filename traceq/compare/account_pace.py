"""The common pace of all that both sides do as often: another load, clock or number of threads, and no other work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cosh, exp, log, tanh
from statistics import median

import numpy as np
from numpy.typing import NDArray

from traceq.causes.host_line import ONCE
from traceq.compare.attribution import Account
from traceq.frozen import frozen

_LEAST, _LEAST_OF_CHANGE = 0.01, 1 / 3
"""Common change below which there is no pace, and part of it that an account has at least if it changed alike."""
_COMMON, _COMMON_CAPPED, _CAP = 0.75, 0.6, 0.9
"""Part of the time whose accounts changed alike; also if none weighs more than that quantile of them."""
_FEWEST = 10
_LEAST_COMPARED = 1 / 3
"""Part of the shorter side's time that accounts of both have to take, or they tell nothing of its pace."""
_FEWEST_STEPS, _UNSTEADY = 5, 2
"""Steps from which the median of an account tells, and multiple of it from which its mean is that of few steps."""
_ERRORS, _SD_OF_QUANTILE = 3, 0.76
"""Standard deviations by which an account differs from the pace, and that of a change at the quantile above."""


@frozen
class AccountPace:
    """`ratio` of B's time to A's of some accounts, and by key the ns per step by which each may differ from it."""

    ratio: float
    scatter_ns: Mapping[str, float]

    def explained_ns(self, key: str, a_ns: int, b_ns: int) -> int:
        """Return the ns of b - a of an account that the ratio explains: all of it where it is theirs."""
        return round((a_ns + b_ns) * tanh(log(self.ratio) / 2)) if key in self.scatter_ns else 0

    def without(self, key: str, of_a: Sequence[int], of_b: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ns of an account by step, which differ by what the ratio does not explain."""
        if key not in self.scatter_ns:
            return of_a, of_b
        half = log(self.ratio) / 2
        first, second = (
            [round(ns * exp(sign * half) / cosh(half)) for ns in side] for sign, side in ((1, of_a), (-1, of_b))
        )
        return first, second


NO_PACE = AccountPace(1.0, {})


def pace_of_accounts(of_a: Mapping[str, Account], of_b: Mapping[str, Account], num_a: int, num_b: int) -> AccountPace:
    """Return the common pace of the hosts' accounts, by key, of `num_a` and `num_b` steps; NO_PACE without one.

    It is that of the sums of all accounts with as many calls per step on both sides, if most of their time changed in
    that direction: not only that of a few long ones, nor of many short ones. Where they are little of the step, they
    are what a rewrite left, such as the Python around a model whose layers are checkpointed now.
    """
    keys = [key for key in of_a if key in of_b and _are_alike(of_a[key], of_b[key], num_a, num_b)]
    if len(keys) < _FEWEST:
        return NO_PACE
    a_ns, b_ns = (np.array([side[key].ns / num for key in keys]) for side, num in ((of_a, num_a), (of_b, num_b)))
    ratio, least = float(b_ns.sum() / a_ns.sum()), np.minimum(a_ns, b_ns)
    all_ns = [sum(each.ns for each in side.values()) / num for side, num in ((of_a, num_a), (of_b, num_b))]
    if min(a_ns.sum(), b_ns.sum()) < _LEAST_COMPARED * min(all_ns):
        return NO_PACE
    if abs(log(ratio)) < _LEAST or not _is_common(np.log(b_ns / a_ns) / log(ratio), least):
        return NO_PACE
    left = np.abs(b_ns - a_ns - (a_ns + b_ns) * tanh(log(ratio) / 2)) / least
    scatter = _ERRORS * _SD_OF_QUANTILE * float(np.quantile(left, _CAP)) * least
    return AccountPace(ratio, dict(zip(keys, scatter.tolist(), strict=True)))


def _is_common(change: NDArray[np.float64], ns: NDArray[np.float64]) -> bool:
    """Return whether accounts with most of the time have much of the common change: `change` is 1 for that."""
    is_alike = change >= _LEAST_OF_CHANGE
    capped = np.minimum(ns, np.quantile(ns, _CAP))
    return bool(ns[is_alike].sum() >= _COMMON * ns.sum() and capped[is_alike].sum() >= _COMMON_CAPPED * capped.sum())


def _are_alike(of_a: Account, of_b: Account, num_a: int, num_b: int) -> bool:
    """Return whether both sides do the same in each step; what a process does once, or in few of them, is not that."""
    is_work = of_a.kind == "host" and of_a.name != ONCE and _is_steady(of_a) and _is_steady(of_b)
    return is_work and of_a.num * num_b == of_b.num * num_a and of_a.ns > 0 < of_b.ns


def _is_steady(account: Account) -> bool:
    """Return whether most of an account's time is in most of its steps: a checkpoint is in few."""
    by_step = account.by_step
    return len(by_step) < _FEWEST_STEPS or sum(by_step) <= _UNSTEADY * len(by_step) * median(by_step)
