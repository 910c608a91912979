"""Contributions of sides of which one has no device: by what each charges its steps to.

There the host is the longest path, so that all of what changes in it reaches the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_steps import are_swapped
from traceq.causes.edges import IN_A, IN_B, IN_BOTH
from traceq.compare.attribution import Accounts, accounts
from traceq.compare.contributions import Contributions, Part
from traceq.compare.labels import LOADER, LabelNumbers
from traceq.frozen import frozen
from traceq.model import Trace

_PARTS = {"sync": Part.HOST, "host": Part.HOST, "collective": Part.COLLECTIVE}


@frozen(eq=False)
class _Sums:
    """Accounts of one side by the labels of both: `ns`, `num`, `bytes` int64[L, K]; `inner` by label and op."""

    ns: NDArray[np.int64]
    num: NDArray[np.int64]
    bytes: NDArray[np.int64]
    inner: Mapping[int, Mapping[str, int]]


def account_contributions(a: Trace, b: Trace) -> Contributions:
    """Return the contributions of each account in each of the counted steps that both sides have, the n-th as pairs."""
    is_swapped = are_swapped(a, b)
    a, b = (b, a) if is_swapped else (a, b)
    sides = accounts(a, b), accounts(b, a)
    numbers = LabelNumbers([side.labels for side in sides], (a, b), is_swapped=is_swapped)
    of_sides = [numbers.numbers(side.labels) for side in sides]
    num_steps = min(side.ns.shape[1] for side in sides)
    of_a, of_b = (
        _sums(side, of_side, len(numbers.labels), num_steps) for side, of_side in zip(sides, of_sides, strict=True)
    )
    more = of_b.num - of_a.num
    more[[is_number_of_chance(*nums) for nums in zip(of_a.num.tolist(), of_b.num.tolist(), strict=True)]] = 0
    more[[label.name == LOADER.name for label in numbers.labels]] = 0  # its ops are of one side alone, or in workers
    moved = of_b.bytes - of_a.bytes
    label, step = np.nonzero(of_a.ns | of_b.ns | more | moved)
    a_ns, b_ns, none = of_a.ns[label, step], of_b.ns[label, step], np.zeros(len(label), np.bool_)
    return Contributions(
        labels=numbers.labels,
        lines=numbers.lines,
        label=label.astype(np.int32),
        step=step.astype(np.int32),
        gap=step.astype(np.int32),
        part=np.array([_PARTS.get(each.kind, Part.KERNEL) for each in numbers.labels], np.int8)[label],
        a_ns=a_ns,
        b_ns=b_ns,
        share=np.ones(len(label)),
        sides=np.where(a_ns == 0, IN_B, np.where(b_ns == 0, IN_A, IN_BOTH)).astype(np.int8),
        num=more[label, step],
        moved=moved[label, step],
        num_steps=np.full(len(label), num_steps),
        is_copied=none,
        is_waited=none,
        calls=more.sum(axis=1) / num_steps,
        inner=_differences(of_a.inner, of_b.inner),
        others={},
        is_paired=False,
        is_swapped=is_swapped,
        traces=(a, b),
        ranks=(a.rank,),
        num_paired=num_steps,
        steps_ns=float(of_a.ns.sum() + of_b.ns.sum()) / 2,
    )


def _sums(side: Accounts, of_side: NDArray[np.int64], num_labels: int, num_steps: int) -> _Sums:
    ns, num, moved = np.zeros((3, num_labels, num_steps), np.int64)
    for total, column in ((ns, side.ns), (num, side.num), (moved, side.bytes)):
        np.add.at(total, of_side, column[:, :num_steps])
    inner: dict[int, dict[str, int]] = {}
    for number, times in zip(of_side.tolist(), side.inner, strict=True):
        of_label = inner.setdefault(number, {})
        for name, op_ns in times.items():
            of_label[name] = of_label.get(name, 0) + op_ns
    return _Sums(ns, num, moved, inner)


def _differences(
    of_a: Mapping[int, Mapping[str, int]], of_b: Mapping[int, Mapping[str, int]]
) -> dict[int, dict[str, float]]:
    result: dict[int, dict[str, float]] = {}
    for sign, of_side in ((-1, of_a), (1, of_b)):
        for number, times in of_side.items():
            of_label = result.setdefault(number, {})
            for name, ns in times.items():
                of_label[name] = of_label.get(name, 0) + sign * ns
    return result


def is_number_of_chance(of_a: Sequence[int], of_b: Sequence[int]) -> bool:
    """Return whether steps of each side differ in how often something happens, by as much as the sides are apart.

    An augmentation that is drawn for each sample does. What a side never does, or as often in each step, is no chance,
    unless most steps of the other do it as often, and each does it: one has the last, smaller batch of an epoch.
    """
    if min(of_a) == max(of_a) or min(of_b) == max(of_b):
        return _is_usual_number(of_a, of_b) or _is_usual_number(of_b, of_a)
    apart = max(min(of_b) - max(of_a), min(of_a) - max(of_b))
    return apart <= max(max(of_a) - min(of_a), max(of_b) - min(of_b))


def _is_usual_number(constant: Sequence[int], of_other: Sequence[int]) -> bool:
    """Return whether each step of one side has the number that most steps of the other have, and none of them 0."""
    number = constant[0]
    is_in_each = min(constant) == max(constant) and min(of_other) > 0
    return is_in_each and 2 * list(of_other).count(number) > len(of_other)
