"""Differences between two runs of the same code: the pace of all unchanged work, and its jitter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.causes.host_line import ONCE
from traceq.compare.contributions import Contributions, Part
from traceq.compare.labels import LOADER, Label
from traceq.compare.result import REPLACED_BY
from traceq.facts.timeline.data_loading import have_unlike_loaders
from traceq.facts.timeline.host_pauses import PAUSES
from traceq.grouping import Numbers
from traceq.intervals import sorted_unique

_SHORTEST_NS, _LONG_NS, _FEWEST_PARTS = 200, 10_000, 20
"""Parts as short as this on a side say nothing about the pace; long ones say most, where there are enough: as many as
this that weigh alike."""

_ERRORS, _MANY_STEPS = 3, 5
_LEAST_OF_CHANGE, _COMMON = 1 / 3, 0.75
"""Part of the common change that a name has at least, and part of the time whose names do."""
_CLEAR_ERRORS, _ERROR_PER_DEVIATION = 8, 1.86
"""Standard errors of a median, from median absolute deviations, by which a change is clear."""
_FEWEST_NAMES, _QUANTILE, _SD_OF_QUANTILE, _MANY = 5, 0.9, 0.9, 10
_POWERS, _LONG_POWER = 64, 13
"""Powers of two of ns; from 8 us on the relative jitter of all work is an upper bound for sizes with few names."""


def comparable(parts: Contributions) -> NDArray[np.bool_]:
    """Return which contributions are work that both sides did alike: bool[C]; making batches is not receiving them."""
    is_loaded_alike = not have_unlike_loaders(*parts.traces)
    of_work = np.array(
        [is_work(label) and (is_loaded_alike or label.name != LOADER.name) for label in parts.labels], np.bool_
    )
    long_enough = (parts.a_ns > _SHORTEST_NS) & (parts.b_ns > _SHORTEST_NS)
    return np.asarray(of_work[parts.label] & (parts.num == 0) & long_enough & (parts.part != Part.WAIT))


def is_work(label: Label) -> bool:
    """Return whether what a label counts is work of each step, and the same on both sides."""
    return label.kind != "residual" and label.name not in (ONCE, PAUSES) and REPLACED_BY not in label.name


def pace(
    parts: Contributions, work: Numbers, chosen: NDArray[np.int64], least_ns: float
) -> tuple[float, NDArray[np.float64] | float]:
    """Return (B's time by A's of the contributions `chosen` int64[X], all work alike; float64[X] ns that it explains).

    That is the median of the ratios, weighted by duration, if it differs from 1 by more than three standard errors,
    explains more than `least_ns` of the paired steps, and most names changed alike: those in which a single phase or
    thread became slower are not all. Nor is it that of steps which differ as much among themselves. No name (`work`
    int64[labels]) weighs more than the 9th decile of names: where a single kernel takes half of the time, its change is
    not that of all. Nor is that of a few long parts: what weighs as much as fewer parts than that of equal weight has
    no pace.
    """
    unchanged = 1.0, 0.0
    if len(chosen) < _FEWEST_PARTS:
        return unchanged
    a_ns, b_ns = parts.a_ns[chosen].astype(np.float64), parts.b_ns[chosen].astype(np.float64)
    weight = np.minimum(a_ns, b_ns)
    if (weight >= _LONG_NS).sum() >= _FEWEST_PARTS:
        weight = np.where(weight >= _LONG_NS, weight, 0.0)
    name = work[parts.label[chosen]]
    of_name = np.bincount(name, weights=weight)
    limit = np.quantile(of_name[of_name > 0], 0.9)
    weight *= limit / np.maximum(of_name, limit)[name]
    if weight.sum() ** 2 < _FEWEST_PARTS * (weight**2).sum():
        return unchanged
    ratios, step = np.log(b_ns / a_ns), parts.step[chosen]
    low, median, high = _quantiles(ratios, weight, (0.25, 0.5, 0.75))
    error = 1.25 * (high - low) / 1.35 * np.sqrt((weight**2).sum()) / weight.sum()  # of a normal distribution's median
    if abs(median) <= _ERRORS * error or not _is_common(median, a_ns, b_ns, weight, name, step + 1):
        return unchanged
    inside = sorted_unique(step[step >= 0])
    if len(inside) == 1:  # its parts in turn are as good as steps
        step = (np.arange(len(chosen)) * _MANY_STEPS // len(chosen)).astype(np.int32)
        inside = sorted_unique(step)
    in_steps = [_quantiles(ratios[step == each], weight[step == each], (0.5,))[0] for each in inside]
    if abs(median) <= _ERRORS * _error_of_steps(in_steps):
        return unchanged
    explained = parts.share[chosen] * (a_ns + b_ns) * np.tanh(median / 2)
    return (float(np.exp(median)), explained) if abs(explained.sum()) > least_ns else unchanged


def _quantiles(values: NDArray[np.float64], weight: NDArray[np.float64], parts: Sequence[float]) -> list[float]:
    """Return weighted quantiles."""
    order = np.argsort(values, kind="stable")
    running = np.cumsum(weight[order])
    return [float(values[order][np.searchsorted(running, running[-1] * part)]) for part in parts]


def error_of_mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the standard error of the mean of steps; 0 for one, which does not tell."""
    return float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def clear_change(by_step: NDArray[np.float64]) -> float:
    """Return the median difference of the n-th steps of both sides where all but single long steps agree in it, else 0.

    On a busy machine a step may lose its core for milliseconds, which hides a change from the error of the mean.
    """
    if len(by_step) < _MANY_STEPS:
        return 0.0
    middle = float(np.median(by_step))
    error = _ERROR_PER_DEVIATION * float(np.median(np.abs(by_step - middle))) / len(by_step) ** 0.5
    return middle if abs(middle) > _CLEAR_ERRORS * error else 0.0


def _error_of_steps(paces: Sequence[float]) -> float:
    """Return the standard error of the pace of steps: of many without the one farthest off, of few ones more."""
    if len(paces) < _MANY_STEPS:
        return error_of_mean(paces) * _MANY_STEPS / max(len(paces), 1)
    middle = float(np.median(paces))
    return error_of_mean(sorted(paces, key=lambda pace: abs(pace - middle))[:-1])


def _is_common(
    change: float,
    a_ns: NDArray[np.float64],
    b_ns: NDArray[np.float64],
    weight: NDArray[np.float64],
    name: Numbers,
    step: Numbers,
) -> bool:
    """Return whether names with most of the weight changed as all work did, each in the median of the steps."""
    cell, (num, num_steps) = name.astype(np.int64) * (step.max() + 1) + step, (name.max() + 1, step.max() + 1)
    of_a, of_b = (
        np.bincount(cell, weights=ns * (weight > 0), minlength=num * num_steps).reshape(num, num_steps)
        for ns in (a_ns, b_ns)
    )
    changed = np.log(np.divide(of_b, of_a, out=np.full_like(of_a, np.nan), where=of_a > 0)) / change
    has_change = ~np.isnan(changed).all(axis=1)
    of_name = np.bincount(name, weights=weight)[has_change]
    return bool(of_name[np.nanmedian(changed[has_change], axis=1) >= _LEAST_OF_CHANGE].sum() >= _COMMON * of_name.sum())


def jitter(
    parts: Contributions,
    work: Numbers,
    chosen: NDArray[np.bool_],
    paced: NDArray[np.float64],
    *,
    same_work: bool,
) -> NDArray[np.float64]:
    """Return float64[C] ns: the standard deviation of each contribution between two runs of the same code.

    Relative to its duration, by power of two, from the relative changes of all `chosen` work of that size: a high
    quantile over names (`work` int64[labels]), one vote each, as what did change is among them. Collectives vary with
    other ranks: they use that of kernels. Host time of a moment on one side may take as long on the
    other as such parts change. Pauses of the host come and go. Kernels without the `same_work`, on other shapes or
    dtypes, have none: they would not take as long in another run.
    """
    sigma = _jitter_of_moments(parts, chosen)
    paused = np.array([label.name == PAUSES for label in parts.labels], np.bool_)[parts.label]
    sigma[paused] = np.abs(parts.b_ns - parts.a_ns)[paused]
    of_kernels = np.zeros(_POWERS)
    for part in (Part.HOST, Part.KERNEL, Part.COLLECTIVE):
        index = np.flatnonzero(chosen & (parts.part == part))
        least, relative = _relative_change(parts, paced, index)
        size = np.log2(least).astype(np.uint8)
        rho = of_kernels if part == Part.COLLECTIVE else _relative_jitter(size, work[parts.label[index]], relative)
        if part == Part.KERNEL:
            of_kernels = rho
        if part != Part.KERNEL or same_work:
            sigma[index] = np.maximum(rho[size] * least, 1)
    return sigma


def _jitter_of_moments(parts: Contributions, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return float64[C] ns: by how much host time of labels of `chosen` work changed, at most what is usual; else 0."""
    both = np.bincount(parts.label[chosen], minlength=len(parts.labels)) > 0
    moments = np.flatnonzero(both[parts.label] & (parts.part == Part.HOST))
    change = np.abs(parts.b_ns[moments] - parts.a_ns[moments]).astype(np.float64)
    of_alike = change[chosen[moments]]
    usual = _MANY * np.median(of_alike) if len(of_alike) else 0.0
    sigma = np.zeros(len(chosen))
    sigma[moments] = np.minimum(change, usual)
    return sigma


def _relative_change(
    parts: Contributions, paced: NDArray[np.float64], index: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (the shorter duration of some contributions, ns; the change in it that no pace explains): float64[]."""
    share, least = parts.share[index], np.minimum(parts.a_ns[index], parts.b_ns[index]).astype(np.float64)
    change = np.divide(-paced[index], share, out=np.zeros(len(index)), where=share != 0)
    change += parts.b_ns[index] - parts.a_ns[index]
    return least, np.abs(change) / least


def _relative_jitter(size: NDArray[np.uint8], work: Numbers, relative: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[64]: relative jitter by power of two of ns; with few names from that of smaller work."""
    rho = np.zeros(_POWERS)
    is_long = size >= _LONG_POWER
    usual = _quantile(work[is_long], relative[is_long]) or np.inf
    order = np.argsort(size, kind="stable")  # of numbers of one byte by radix
    work, relative = work[order], relative[order]
    first = np.searchsorted(size[order], np.arange(_POWERS + 1))
    for power in range(_POWERS):
        of_power = slice(first[power], first[power + 1])
        of_names = _quantile(work[of_power], relative[of_power])
        if of_names is not None:
            rho[power] = of_names
        elif power:
            rho[power] = min(rho[power - 1], usual)
    return rho


def _quantile(work: Numbers, relative: NDArray[np.float64]) -> float | None:
    """Return the relative jitter that fits a high quantile of the median changes of names; None for too few names.

    A single long pause of one of them is not its jitter.
    """
    order = np.argsort(relative)  # several times as fast as a stable sort, which sorts few names by radix
    order = order[np.argsort(work[order].astype(np.min_scalar_type(int(work.max(initial=0)))), kind="stable")]
    first = np.flatnonzero(np.diff(work[order], prepend=-1))
    if len(first) < _FEWEST_NAMES:
        return None
    middle = (first + np.r_[first[1:], len(order)] - 1) // 2
    return float(_SD_OF_QUANTILE * np.quantile(relative[order][middle], _QUANTILE, method="lower"))
