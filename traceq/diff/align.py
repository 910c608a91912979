"""Which account of A is which of B where names do not say: kernels of another op, kernels that replaced others."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Sequence
from dataclasses import replace

from traceq.diff.actors import LAUNCHES
from traceq.diff.ledger import Account
from traceq.diff.result import Cause, share

__all__ = ["aligned", "with_replacements"]


def aligned(a: Sequence[Account], b: Sequence[Account]) -> tuple[dict[str, Account], dict[str, Account]]:
    """Accounts by key. A kernel that not the same ops launch on both sides is one account, whatever launched it: clocks
    that disagree by some microseconds charge it to the op next to its own."""
    sides = [_by_kernel(side) for side in (a, b)]
    found: list[dict[str, Account]] = [{}, {}]
    for kernel in sides[0].keys() | sides[1].keys():
        keys = [{account.key for account in side.get(kernel, ())} for side in sides]
        differ = bool(kernel) and bool(keys[0]) and bool(keys[1]) and keys[0] != keys[1]
        for of_side, side in zip(found, sides, strict=True):
            accounts = side.get(kernel, [])
            merged = [_merged(kernel, accounts)] if differ else accounts
            of_side.update({account.key: account for account in merged})
    return found[0], found[1]


def _by_kernel(accounts: Sequence[Account]) -> dict[str, list[Account]]:
    """Accounts of one kernel in one phase; all that are no kernels under ""."""
    found: dict[str, list[Account]] = {}
    for account in accounts:
        name = account.name.rpartition(LAUNCHES)[2]
        key = f"{account.kind}|{account.phase}|{name}|" if account.kind in ("kernel", "memcpy") else ""
        found.setdefault(key, []).append(account)
    return found


def _merged(key: str, accounts: Sequence[Account]) -> Account:
    num, ns = (sum(getattr(account, column) for account in accounts) for column in ("num", "ns"))
    return replace(accounts[0], key=key, name=accounts[0].name.rpartition(LAUNCHES)[2], line="", num=num, ns=ns)


def with_replacements(found: list[Cause], of_a: KeysView[str], of_b: KeysView[str], delta_ns: int) -> list[Cause]:
    """Kernels, and collectives, that only A has where others are only B's: those were replaced by these.

    First within the op that launches them, as kernels change their names with the device and the version, then within
    the phase. One by one they would dwarf everything else and cancel; one row shows what the replacement changed.
    """
    by_op = _folded(found, of_a, of_b, delta_ns, _launching_op)
    return _folded(by_op, of_a, of_b, delta_ns, lambda cause: cause.phase)


def _launching_op(cause: Cause) -> str:
    op = cause.name.rpartition(LAUNCHES)[0]
    return f"{cause.phase}|{op}" if op else ""


def _folded(
    found: list[Cause], of_a: KeysView[str], of_b: KeysView[str], delta_ns: int, place: Callable[[Cause], str]
) -> list[Cause]:
    """The causes, those of one side that stand where the other side has some of its own as one row a place; "" is
    no place."""
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
        line="",
        delta_num=round(sum(cause.delta_num for cause in (*gone, *come)), 9) + 0.0,  # thirds that cancel are no change
        delta_ns=total,
        count_ns=total,
        dur_ns=0,
        share_pct=share(total, delta_ns),
    )


def _name_of(gone: list[Cause], come: list[Cause]) -> str:
    """`aten::mm > old replaced by new`; the op only where it launched all of them."""
    ops = {cause.name.rpartition(LAUNCHES)[0] for cause in (*gone, *come)}
    op = f"{ops.pop()}{LAUNCHES}" if len(ops) == 1 else ""
    sides = (
        causes[0].name.rpartition(LAUNCHES)[2] if len(causes) == 1 else f"{len(causes)} {causes[0].kind}s"
        for causes in (gone, come)
    )
    return (op if op != LAUNCHES else "") + " replaced by ".join(sides)
