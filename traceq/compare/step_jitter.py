"""What steps of one side differ by among themselves, too, is no cause: jitter of accounts over traced steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.compare.cause_names import cause_name, jitter_name, phase_text
from traceq.compare.result import Cause, share
from traceq.frozen import frozen
from traceq.stats.hodges_lehmann import shift_between

__all__ = ["StepShift", "is_number_of_chance", "join_jitter", "step_shift"]

_FEWEST_STEPS, _ERRORS, _APART = 3, 2, 0.9
"""Steps of a side; standard errors, or part of all pairs of steps that differ in one direction, that show a change."""
_CLEAR_STEPS, _CLEAR_ERRORS, _ERROR_PER_DEVIATION = 5, 8, 1.86
"""The same for what all but single long steps agree in: robust standard errors, from median absolute deviations."""


@frozen
class StepShift:
    """By how much steps of B take longer than those of A for an account: its location, which long steps do not move.

    `sd_ns` is the standard error of the difference of their means. `is_change`: it is more than steps differ by.
    """

    ns: int
    sd_ns: int
    is_change: bool


def is_number_of_chance(of_a: Sequence[int], of_b: Sequence[int]) -> bool:
    """Return whether steps of each side differ in how often something happens, by as much as the sides are apart.

    An augmentation that is drawn for each sample does. What a side never does, or as often in each step, is no chance,
    unless most steps of the other do it as often, and each does it: one has the last, smaller batch of an epoch.
    """
    if not (of_a and of_b):
        return False
    if min(of_a) == max(of_a) or min(of_b) == max(of_b):
        return _is_usual_number(of_a, of_b) or _is_usual_number(of_b, of_a)
    apart = max(min(of_b) - max(of_a), min(of_a) - max(of_b))
    return apart <= max(max(of_a) - min(of_a), max(of_b) - min(of_b))


def _is_usual_number(constant: Sequence[int], of_other: Sequence[int]) -> bool:
    """Return whether each step of one side has the number that most steps of the other have, and none of them 0."""
    number = constant[0]
    is_in_each = min(constant) == max(constant) and min(of_other) > 0
    return is_in_each and 2 * list(of_other).count(number) > len(of_other)


def step_shift(of_a: Sequence[int], of_b: Sequence[int]) -> StepShift | None:
    """Return the shift of an account's ns by step; None for too few steps to tell.

    Of equally many steps the n-th are compared with each other: those of arms that took turns are neighbours.
    """
    if min(len(of_a), len(of_b)) < _FEWEST_STEPS:
        return None
    a_ns, b_ns = np.array(of_a, np.int64), np.array(of_b, np.int64)
    if len(a_ns) == len(b_ns):
        error = float((b_ns - a_ns).std(ddof=1)) / len(a_ns) ** 0.5
    else:
        error = float(a_ns.var(ddof=1) / len(a_ns) + b_ns.var(ddof=1) / len(b_ns)) ** 0.5
    apart = np.sign(np.subtract.outer(b_ns, a_ns)).mean()
    is_change = abs(float(b_ns.mean() - a_ns.mean())) > _ERRORS * error or abs(float(apart)) >= 2 * _APART - 1
    shift_ns = shift_between(b_ns, a_ns, testable=False).delta
    return StepShift(shift_ns, round(error), bool(is_change) or _is_clear(a_ns, b_ns, shift_ns))


def _is_clear(a_ns: NDArray[np.int64], b_ns: NDArray[np.int64], shift_ns: int) -> bool:
    """Return True if single long steps alone hide the change: all but some of as many steps agree in it.

    On a busy machine a step may lose its core for milliseconds, which makes the other two criteria blind.
    """
    if len(a_ns) != len(b_ns) or len(a_ns) < _CLEAR_STEPS:
        return False
    apart, paired = float(np.hypot(_deviation(a_ns), _deviation(b_ns))), _deviation(b_ns - a_ns)
    error = _ERROR_PER_DEVIATION * max(apart, paired) / len(a_ns) ** 0.5
    return bool(min(abs(shift_ns), abs(float(np.median(b_ns - a_ns)))) > _CLEAR_ERRORS * error)


def _deviation(values: NDArray[np.int64]) -> float:
    """Return the median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values))))


def _most_of(causes: Sequence[Cause], total_ns: int) -> str:
    """Return the cause with half or more of what some add up to, as in the few steps that a checkpoint is in; or ""."""
    largest = max(causes, key=lambda cause: abs(cause.delta_ns))
    has_most = 2 * abs(largest.delta_ns) >= abs(total_ns) and (largest.delta_ns > 0) == (total_ns > 0)
    return " ".join(filter(None, (cause_name(largest), phase_text(largest)))) if has_most else ""


def join_jitter(causes: Sequence[Cause], shifts: Mapping[str, StepShift], delta_ns: int) -> list[Cause]:
    """Return causes that add up to as much: what is done as often takes its shift longer, and one row has the rest.

    `shifts` by the key of a cause; other causes stay as they are.
    """
    changes: list[Cause] = []
    rest: list[Cause] = []
    for cause in causes:
        shift = shifts.get(cause.key)
        if shift is None or cause.delta_num or cause.delta_bytes:
            changes.append(cause)
        elif shift.is_change:
            percent = share(shift.ns, delta_ns)
            changes.append(replace(cause, delta_ns=shift.ns, dur_ns=shift.ns, share_pct=percent, sd_ns=shift.sd_ns))
        else:
            rest.append(replace(cause, sd_ns=shift.sd_ns))
    total = sum(cause.delta_ns for cause in causes) - sum(cause.delta_ns for cause in changes)
    if not rest and abs(total) <= len(changes):  # roundings of means
        changes.sort(key=lambda cause: -abs(cause.delta_ns))
        return [
            replace(each, delta_ns=each.delta_ns + total, dur_ns=each.dur_ns + total) for each in changes[:1]
        ] + changes[1:]
    sd_ns = round(float(np.sqrt(sum(float(cause.sd_ns) ** 2 for cause in rest))))
    name = jitter_name(len(rest), total, sd_ns, _most_of(rest, total)) if rest else "single long steps"
    jitter = Cause("jitter", "jitter", "", name, "", 0, total, 0, total, share(total, delta_ns), sd_ns=sd_ns)
    return [*changes, jitter]
