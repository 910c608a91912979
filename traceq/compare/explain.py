"""Explain the difference between two traced windows: cells and causes that add up to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from traceq.compare.align import align_accounts
from traceq.compare.attribution import Account, Ledger, ledger, whole_mean
from traceq.compare.replaced_kernels import fold_replacements
from traceq.compare.result import Cause, CellDelta, Chain, Traced, share
from traceq.facts.timeline.steps import steps
from traceq.model import Trace

__all__ = ["Explanation", "explain"]

_SHARE_OF_A_DECISION = 0.05
_MAJORITY = 2

Key = TypeVar("Key", str, tuple[str, str])

Explanation = tuple[Traced, tuple[CellDelta, ...], tuple[Cause, ...]]


def explain(a: Trace, b: Trace) -> Explanation:
    """Return (the traced step of both sides, its cells, its causes by size of their delta).

    Both cells and causes add up to the traced delta exactly; swapping A and B changes every sign and nothing else.
    """
    of_a, of_b = ledger(a), ledger(b)
    a_ns, b_ns = (whole_mean(side.total_ns, side.num_steps) for side in (of_a, of_b))
    marked = any(steps(trace).marked for trace in (a, b))
    traced = Traced(of_a.rank, a_ns, b_ns, of_a.num_steps, of_b.num_steps, marked)
    return traced, _cells(of_a, of_b), _causes(of_a, of_b, traced.delta_ns)


def _means(of_a: Mapping[Key, int], of_b: Mapping[Key, int], num_a: int, num_b: int) -> dict[Key, tuple[int, int]]:
    """Return (A's, B's) mean per step by key, in whole ns that add up to the rounded mean of each side.

    Keys that are equal on both sides are rounded first, from equal running sums, so that they stay equal.
    """

    def differs(key: Key) -> bool:
        return of_a.get(key, 0) * num_b != of_b.get(key, 0) * num_a

    keys = sorted(of_a.keys() | of_b.keys(), key=lambda key: (differs(key), key))
    a_ns = _per_step([of_a.get(key, 0) for key in keys], num_a)
    b_ns = _per_step([of_b.get(key, 0) for key in keys], num_b)
    return dict(sorted(zip(keys, zip(a_ns, b_ns, strict=True), strict=True)))


def _per_step(totals: Sequence[int], num_steps: int) -> list[int]:
    """Return means of totals in whole ns, rounded so that they add up to the rounded mean of their sum."""
    running = np.cumsum(np.array([0, *totals], np.int64))
    means: list[int] = np.diff((running + num_steps // 2) // num_steps).tolist()
    return means


def _cells(a: Ledger, b: Ledger) -> tuple[CellDelta, ...]:
    """Return every phase and category of either side, by name."""
    of_a, of_b = ({(cell.phase, cell.category): cell.ns for cell in side.cells} for side in (a, b))
    means = _means(of_a, of_b, a.num_steps, b.num_steps)
    return tuple(CellDelta(*key, a_ns, b_ns) for key, (a_ns, b_ns) in means.items())


def _causes(a: Ledger, b: Ledger, delta_ns: int) -> tuple[Cause, ...]:
    of_a, of_b = align_accounts(a, b)
    total_a, total_b = ({key: account.ns for key, account in side.items()} for side in (of_a, of_b))
    causes = []
    for key, (a_ns, b_ns) in _means(total_a, total_b, a.num_steps, b.num_steps).items():
        first, second = of_a.get(key), of_b.get(key)
        sides = ((first, a.num_steps), (second, b.num_steps))
        num_a, num_b = (side.num / num if side else 0.0 for side, num in sides)
        bytes_a, bytes_b = (whole_mean(side.bytes if side else 0, num) for side, num in sides)
        if (a_ns, num_a, bytes_a) != (b_ns, num_b, bytes_b):
            cause = _cause(second or of_a[key], num_a, num_b, a_ns, b_ns, delta_ns)
            self_op = _self_op(cause, first, second, a.num_steps, b.num_steps)
            chain = _chain(cause, sides)
            causes.append(replace(cause, self_op=self_op, delta_bytes=bytes_b - bytes_a, chain=chain))
    folded = fold_replacements(causes, of_a.keys(), of_b.keys(), delta_ns)
    return tuple(sorted(folded, key=lambda cause: (not _is_decision(cause, delta_ns), -abs(cause.delta_ns), cause.key)))


def _self_op(cause: Cause, of_a: Account | None, of_b: Account | None, num_a: int, num_b: int) -> str:
    """Return the op inside a host op whose self time is most of the difference; "" if that is the op itself."""
    sign = 1 if cause.delta_ns > 0 else -1
    more: dict[str, float] = {}
    for account, num in ((of_a, -num_a), (of_b, num_b)):
        for time in account.inner if account else ():
            more[time.name] = more.get(time.name, 0.0) + sign * time.ns / num
    most = max(sorted(more), key=lambda name: more[name], default="")
    return most if most != cause.name and _MAJORITY * more.get(most, 0.0) > abs(cause.delta_ns) > 0 else ""


def _chain(cause: Cause, sides: Sequence[tuple[Account | None, int]]) -> Chain | None:
    """Return the differences of a sync's copy, its wait and the idle time after it; None without copy and wait."""
    if cause.kind != "sync" or not any(side and (side.copied or side.waited) for side, _ in sides):
        return None

    def difference(field: str) -> int:
        first, second = (whole_mean(getattr(side, field) if side else 0, num) for side, num in sides)
        return second - first

    copied, waited = difference("copied"), difference("waited")
    return Chain(copied, waited, cause.delta_ns - copied - waited)


def _is_decision(cause: Cause, delta_ns: int) -> bool:
    """Return whether a cause is a sync that was added or removed; these come first, as someone wrote each of them."""
    is_large = abs(cause.delta_ns) >= _SHARE_OF_A_DECISION * abs(delta_ns)
    return cause.kind == "sync" and cause.delta_num != 0 and is_large


def _cause(account: Account, num_a: float, num_b: float, a_ns: int, b_ns: int, delta_ns: int) -> Cause:
    """Return the cause, its delta split into the change in number at the mean duration and the rest.

    A cause that is on one side only is all change in number.
    """
    each_a, each_b = a_ns / num_a if num_a else None, b_ns / num_b if num_b else None
    if each_a is None and each_b is None:
        count_ns = 0
    else:
        means = [each for each in (each_a, each_b) if each is not None]
        count_ns = round((num_b - num_a) * sum(means) / len(means))
    return Cause(
        key=account.key,
        kind=account.kind,
        phase=account.phase,
        name=account.name,
        line=account.line,
        delta_num=num_b - num_a,
        delta_ns=b_ns - a_ns,
        count_ns=count_ns,
        dur_ns=b_ns - a_ns - count_ns,
        share_pct=share(b_ns - a_ns, delta_ns),
        module=account.module,
    )
