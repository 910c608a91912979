"""Match accounts of A and B whose names differ, as those of work that another op launched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from traceq.compare.attribution import Account, Ledger
from traceq.compare.cost_centers import LAUNCHES
from traceq.facts.timeline.call_sites import line_function

__all__ = ["align_accounts"]

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
