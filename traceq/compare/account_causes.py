"""Causes as differences of accounts: each side's time is charged to what it is spent on, and accounts are matched.

That is the whole answer without a device, where the host line is the critical path. With one it says where the time
went, not why: a host that runs ahead hides what it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traceq.compare.account_pace import NO_PACE, pace_of_accounts
from traceq.compare.attribution import Account, Ledger, whole_mean
from traceq.compare.cause_names import cause_name, jitter_name, pace_name, phase_text
from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.replaced_kernels import fold_replacements, join_moved
from traceq.compare.result import Cause, Chain, share, sorted_causes
from traceq.facts.events.forward_ops import RECOMPUTED
from traceq.facts.timeline.call_sites import line_function
from traceq.frozen import frozen
from traceq.stats.hodges_lehmann import shift_between

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


_CANCELS = 2
_SUMMED = ("num", "ns", "bytes", "copied", "waited")


def align_accounts(a: Ledger, b: Ledger) -> tuple[dict[str, Account], dict[str, Account]]:
    """Return the accounts of both sides by key; accounts that match have the same key.

    Lines and modules tell accounts apart only if both sides have them. Where one op, line or module does some work less
    often and another does it more often, and the changes cancel, the work moved: code was renamed, or clocks that
    disagree by some microseconds charge a kernel to the neighbour of the op that launched it.
    """
    with_line, with_module = (
        all(any(getattr(account, field) for account in side.accounts) for side in (a, b))
        for field in ("line", "module")
    )
    of_a, of_b = (_by_key(side.accounts, with_line=with_line, with_module=with_module) for side in (a, b))
    for key, old_keys in _moved_keys(of_a, of_b, a.num_steps, b.num_steps).items():
        for side in (of_a, of_b):
            if members := [side.pop(old) for old in old_keys if old in side]:
                side[key] = _merged(key, members)
    return of_a, of_b


def _by_key(accounts: Iterable[Account], *, with_line: bool, with_module: bool) -> dict[str, Account]:
    members_of: dict[str, list[Account]] = {}
    for account in accounts:
        parts = [account.kind, account.phase, account.name, line_function(account.line) if with_line else ""]
        parts += [account.module] if with_module and account.module else []
        members_of.setdefault("|".join(parts), []).append(account)
    return {key: _merged(key, members) for key, members in members_of.items()}


def _moved_keys(
    of_a: Mapping[str, Account], of_b: Mapping[str, Account], num_a: int, num_b: int
) -> dict[str, list[str]]:
    """Return the keys to merge, by their new key.

    Work without a count, like Python, moves by its time, from what only one side has to what only the other has: its
    time differs a little in whatever both sides have.
    """
    by_work: dict[str, list[str]] = {}
    for key in sorted(of_a.keys() | of_b.keys()):
        if work := _work(of_b.get(key) or of_a[key]):
            by_work.setdefault(work, []).append(key)
    moved = {}
    for work, keys in by_work.items():
        counts = any(_value(side, key, "num") for side in (of_a, of_b) for key in keys)
        field = "num" if counts else "ns"
        change = {key: _value(of_b, key, field) * num_a - _value(of_a, key, field) * num_b for key in keys}
        one_sided = {key for key in keys if (key in of_a) != (key in of_b)}
        changed = [key for key in keys if change[key] and (counts or key in one_sided)]
        changes = [change[key] for key in changed]
        if one_sided & set(changed) and _CANCELS * abs(sum(changes)) <= sum(map(abs, changes)):
            moved[f"{work}|moved"] = changed
    return moved


def _value(side: Mapping[str, Account], key: str, field: str) -> int:
    value: int = getattr(side[key], field) if key in side else 0
    return value


def _work(account: Account) -> str:
    """Return what an account does, whatever op launched it; "" for syncs with a source line and for collectives."""
    if account.kind == "collective" or (account.kind == "sync" and account.line):
        return ""
    name = account.name
    if account.kind == "sync":
        name = name.partition(" ")[0]
    elif account.kind in ("kernel", "memcpy"):
        name = name.rpartition(LAUNCHES)[2]
    return f"{account.kind}|{account.phase}|{name}"


def _merged(key: str, accounts: Sequence[Account]) -> Account:
    """Return the sum of some accounts, with the name, line and module that all of them share."""
    first = accounts[0]
    if len(accounts) == 1:
        return replace(first, key=key)
    sums = {field: sum(getattr(account, field) for account in accounts) for field in _SUMMED}
    name = first.name if len({account.name for account in accounts}) == 1 else _work(first).rpartition("|")[2]
    line = first.line if len({line_function(account.line) for account in accounts}) == 1 else ""
    module = first.module if len({account.module for account in accounts}) == 1 else ""
    inner = tuple(time for account in accounts for time in account.inner)
    return replace(
        first,
        key=key,
        name=name,
        line=line,
        module=module,
        inner=inner,
        by_step=_summed([account.by_step for account in accounts]),
        num_by_step=_summed([account.num_by_step for account in accounts]),
        **sums,
    )


def _summed(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


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
