"""Which account of A is which of B where names do not say: work of another op, kernels that replaced others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import replace

from traceq.compare.attribution import Account, Ledger, line_function
from traceq.compare.cost_centers import FOR, LAUNCHES
from traceq.compare.result import Cause, share

__all__ = ["aligned", "with_replacements"]

_CANCELS = 2
_SUMMED = ("num", "ns", "bytes", "copied", "waited")


def aligned(a: Ledger, b: Ledger) -> tuple[dict[str, Account], dict[str, Account]]:
    """Accounts by key, those of both sides that are one under one key.

    Lines and modules tell accounts apart only if both sides know them. What one op, line or module does less often and
    another more often moved, as far as it cancels: code that was renamed, or clocks that disagree by some microseconds
    and charge a kernel to the op beside its own.
    """
    with_line, with_module = (
        all(any(getattr(account, what) for account in side.accounts) for side in (a, b)) for what in ("line", "module")
    )
    of_a, of_b = (_by_key(side.accounts, with_line=with_line, with_module=with_module) for side in (a, b))
    for key, moved in _moved(of_a, of_b, a.num_steps, b.num_steps).items():
        for side in (of_a, of_b):
            if mine := [side.pop(old) for old in moved if old in side]:
                side[key] = _merged(key, mine)
    return of_a, of_b


def _by_key(accounts: Iterable[Account], *, with_line: bool, with_module: bool) -> dict[str, Account]:
    found: dict[str, list[Account]] = {}
    for account in accounts:
        parts = [account.kind, account.phase, account.name, line_function(account.line) if with_line else ""]
        parts += [account.module] if with_module and account.module else []
        found.setdefault("|".join(parts), []).append(account)
    return {key: _merged(key, members) for key, members in found.items()}


def _moved(of_a: Mapping[str, Account], of_b: Mapping[str, Account], num_a: int, num_b: int) -> dict[str, list[str]]:
    """Keys of accounts that are one, by the key they get; what has no number, like Python, moves by its time."""
    by_work: dict[str, list[str]] = {}
    for key in sorted(of_a.keys() | of_b.keys()):
        if work := _work(of_b.get(key) or of_a[key]):
            by_work.setdefault(work, []).append(key)
    found = {}
    for work, keys in by_work.items():
        counts = any(_of(side, key, "num") for side in (of_a, of_b) for key in keys)
        column = "num" if counts else "ns"
        more = {key: _of(of_b, key, column) * num_a - _of(of_a, key, column) * num_b for key in keys}
        changed = [key for key in keys if more[key]]
        only = any((key in of_a) != (key in of_b) for key in changed)
        if only and _CANCELS * abs(sum(more.values())) <= sum(map(abs, more.values())):
            found[f"{work}|moved"] = changed
    return found


def _of(side: Mapping[str, Account], key: str, column: str) -> int:
    value: int = getattr(side[key], column) if key in side else 0
    return value


def _work(account: Account) -> str:
    """What an account does, whoever asked for it; "" for syncs that someone wrote, and for collectives."""
    if account.kind == "collective" or (account.kind == "sync" and account.line):
        return ""
    name = account.name
    if account.kind == "sync":
        name = name.partition(" ")[0]
    elif account.kind in ("kernel", "memcpy"):
        name = name.rpartition(LAUNCHES)[2]
    return f"{account.kind}|{account.phase}|{name}"


def _merged(key: str, accounts: Sequence[Account]) -> Account:
    """One account of several: with what they have in common."""
    first = accounts[0]
    if len(accounts) == 1:
        return replace(first, key=key)
    sums = {column: sum(getattr(account, column) for account in accounts) for column in _SUMMED}
    name = first.name if len({account.name for account in accounts}) == 1 else _work(first).rpartition("|")[2]
    line = first.line if len({line_function(account.line) for account in accounts}) == 1 else ""
    module = first.module if len({account.module for account in accounts}) == 1 else ""
    inner = tuple(time for account in accounts for time in account.inner)
    return replace(first, key=key, name=name, line=line, module=module, inner=inner, **sums)


def with_replacements(found: list[Cause], of_a: KeysView[str], of_b: KeysView[str], delta_ns: int) -> list[Cause]:
    """Kernels, and collectives, that only A has where others are only B's: those were replaced by these.

    First within the op that launches them, at the same line of the same module, as kernels change their names with the
    device and the version; then within the op alone, then within the phase, collectives only by those of their role.
    One by one they would dwarf everything else and cancel; one row shows what the replacement changed.
    """
    for place in (_call, _launching_op, _phase_and_role):
        found = _folded(found, of_a, of_b, delta_ns, place)
    return found


def _phase_and_role(cause: Cause) -> str:
    role = cause.name.partition(FOR)[2] if cause.kind == "collective" else ""
    return f"{cause.phase}|{role}" if cause.phase and role else cause.phase


def _launching_op(cause: Cause) -> str:
    op = cause.name.rpartition(LAUNCHES)[0]
    return f"{cause.phase}|{op}" if op else ""


def _call(cause: Cause) -> str:
    op, where = _launching_op(cause), [part for part in (line_function(cause.line), cause.module) if part]
    return "|".join([op, *where]) if op and where else ""


def _folded(
    found: list[Cause], of_a: KeysView[str], of_b: KeysView[str], delta_ns: int, place: Callable[[Cause], str]
) -> list[Cause]:
    """The causes, those of one side that stand where the other side has some of its own as one row a place; "" is
    no place.
    """
    kept, swapped = [], dict[tuple[str, str], list[Cause]]()
    for cause in found:
        one_sided = (cause.key in of_a) != (cause.key in of_b)
        if cause.kind in ("kernel", "collective") and one_sided and place(cause):
            swapped.setdefault((cause.kind, place(cause)), []).append(cause)
        else:
            kept.append(cause)
    for (kind, where), causes in swapped.items():
        gone = [cause for cause in causes if cause.key in of_a]
        come = [cause for cause in causes if cause.key in of_b]
        kept += [_replacement(f"{kind}|{where}|replaced", gone, come, delta_ns)] if gone and come else causes
    return kept


def _replacement(key: str, gone: list[Cause], come: list[Cause], delta_ns: int) -> Cause:
    total = sum(cause.delta_ns for cause in (*gone, *come))
    return Cause(
        key=key,
        kind=gone[0].kind,
        phase=gone[0].phase,
        name=_name_of(gone, come),
        line=gone[0].line if len({line_function(cause.line) for cause in (*gone, *come)}) == 1 else "",
        delta_num=round(sum(cause.delta_num for cause in (*gone, *come)), 9) + 0.0,  # thirds that cancel are no change
        delta_ns=total,
        count_ns=total,
        dur_ns=0,
        share_pct=share(total, delta_ns),
        delta_bytes=sum(cause.delta_bytes for cause in (*gone, *come)),
        module=gone[0].module if len({cause.module for cause in (*gone, *come)}) == 1 else "",
    )


def _name_of(gone: list[Cause], come: list[Cause]) -> str:
    """`aten::mm > old (and 2 more) replaced by new`; the op only where it launched all of them."""
    ops = {cause.name.rpartition(LAUNCHES)[0] for cause in (*gone, *come)}
    op = f"{ops.pop()}{LAUNCHES}" if len(ops) == 1 else ""
    sides = []
    for causes in (gone, come):
        largest = max(causes, key=lambda cause: (abs(cause.delta_ns), cause.key))
        rest = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        sides.append(largest.name.rpartition(LAUNCHES)[2] + rest)
    return (op if op != LAUNCHES else "") + " replaced by ".join(sides)
