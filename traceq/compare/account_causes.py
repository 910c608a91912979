"""Causes as differences of accounts: each side's time is charged to what it is spent on, and accounts are matched.

That is the whole answer without a device, where the host line is the critical path. With one it says where the time
went, not why: a host that runs ahead hides what it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from traceq.compare.account_pace import NO_PACE, pace_of_accounts
from traceq.compare.align import align_accounts
from traceq.compare.attribution import Account, Ledger, whole_mean
from traceq.compare.cause_names import pace_name
from traceq.compare.moved_collectives import join_moved
from traceq.compare.replaced_kernels import fold_replacements
from traceq.compare.result import Cause, Chain, share, sorted_causes
from traceq.compare.step_jitter import StepShift, is_number_of_chance, join_jitter, step_shift
from traceq.facts.events.recomputed_ops import RECOMPUTED

__all__ = ["account_causes", "means_per_step"]

_MAJORITY = 2

Key = TypeVar("Key", str, tuple[str, str])


def means_per_step(
    of_a: Mapping[Key, int], of_b: Mapping[Key, int], num_a: int, num_b: int
) -> dict[Key, tuple[int, int]]:
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


def account_causes(
    a: Ledger, b: Ledger, delta_ns: int, *, is_host_only: bool = True, has_same_work: bool = True
) -> tuple[Cause, ...]:
    """Return the differences of matched accounts, which add up to the traced delta, largest first.

    Of hosts alone, which wait for cores, those that steps of the same code have among themselves, too, are one row of
    jitter, which comes last, and the common pace of all unchanged work is one row.
    """
    of_a, of_b = align_accounts(a, b)
    total_a, total_b = ({key: account.ns for key, account in side.items()} for side in (of_a, of_b))
    pace = pace_of_accounts(of_a, of_b, a.num_steps, b.num_steps) if is_host_only and has_same_work else NO_PACE
    causes, paced_ns = [], 0
    shifts: dict[str, StepShift] = {}
    for key, (a_ns, b_ns) in means_per_step(total_a, total_b, a.num_steps, b.num_steps).items():
        first, second = of_a.get(key), of_b.get(key)
        sides = ((first, a.num_steps), (second, b.num_steps))
        num_a, num_b = (side.num / num if side else 0.0 for side, num in sides)
        if first and second and is_number_of_chance(first.num_by_step, second.num_by_step):
            num_b = num_a
        bytes_a, bytes_b = (whole_mean(side.bytes if side else 0, num) for side, num in sides)
        if (a_ns, num_a, bytes_a) != (b_ns, num_b, bytes_b):
            explained_ns = pace.explained_ns(key, a_ns, b_ns)
            paced_ns += explained_ns
            cause = _cause(second or of_a[key], num_a, num_b, a_ns, b_ns - explained_ns, delta_ns)
            self_op = _self_op(cause, first, second, a.num_steps, b.num_steps)
            chain = _chain(cause, sides)
            in_steps = _in_steps(first, second)
            causes.append(
                replace(cause, self_op=self_op, delta_bytes=bytes_b - bytes_a, chain=chain, in_steps=in_steps)
            )
            shift = step_shift(*pace.without(key, *(side.by_step if side else (0,) * num for side, num in sides)))
            if shift and is_host_only:
                is_change = shift.is_change and abs(shift.ns) > pace.scatter_ns.get(key, 0)
                shifts[cause.key] = replace(shift, is_change=is_change)
    phases = {account.phase for account in of_a.values()} & {account.phase for account in of_b.values()}
    folded = fold_replacements(join_moved(causes, delta_ns, phases), of_a.keys(), of_b.keys(), delta_ns)
    rows = join_jitter(folded, shifts, delta_ns)
    if paced_ns:
        name = pace_name("host ops", pace.ratio)
        rows.append(Cause("pace", "pace", "", name, "", 0, paced_ns, 0, paced_ns, share(paced_ns, delta_ns)))
    return sorted_causes(rows, delta_ns)


def _in_steps(of_a: Account | None, of_b: Account | None) -> str:
    """Return `1 of 3`: in how many of its steps the only side that has an account has its events; "" if in each."""
    only = of_b if of_a is None else of_a if of_b is None else None
    num_with = sum(num > 0 for num in only.num_by_step) if only else 0
    return f"{num_with} of {len(only.num_by_step)}" if only and 0 < num_with < len(only.num_by_step) else ""


def _self_op(cause: Cause, of_a: Account | None, of_b: Account | None, num_a: int, num_b: int) -> str:
    """Return the op inside a host op whose self time is most of the difference; "" if that is the op itself.

    `autograd::engine::evaluate_function: NllLossBackward0` is its node of that name.
    """
    sign = 1 if cause.delta_ns > 0 else -1
    more: dict[str, float] = {}
    for account, num in ((of_a, -num_a), (of_b, num_b)):
        for time in account.inner if account else ():
            more[time.name] = more.get(time.name, 0.0) + sign * time.ns / num
    most = max(sorted(more), key=lambda name: more[name], default="")
    names = (cause.name.removesuffix(RECOMPUTED), cause.name.rpartition(": ")[2])
    return most if most not in names and _MAJORITY * more.get(most, 0.0) > abs(cause.delta_ns) > 0 else ""


def _chain(cause: Cause, sides: Sequence[tuple[Account | None, int]]) -> Chain | None:
    """Return the differences of a sync's copy, its wait and the idle time after it; None without copy and wait."""
    if cause.kind != "sync" or not any(side and (side.copied or side.waited) for side, _ in sides):
        return None

    def difference(field: str) -> int:
        first, second = (whole_mean(getattr(side, field) if side else 0, num) for side, num in sides)
        return second - first

    copied, waited = difference("copied"), difference("waited")
    return Chain(copied, waited, cause.delta_ns - copied - waited)


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
