"""Kernels and collectives of A that others of B replaced, and collectives that only moved: one row each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

import numpy as np

from traceq.causes.vocabulary import plain_name
from traceq.compare.contributions import Contributions
from traceq.compare.cost_centers import FOR, LAUNCHES
from traceq.compare.labels import and_more, without_more
from traceq.compare.result import AND, REPLACED_BY, Cause, share
from traceq.facts.timeline.call_sites import line_function
from traceq.facts.timeline.data_loading import LOADING
from traceq.grouping import equal_pairs, group

_NONE = 1e-6
"""Events per step that are a rounded 0: means over steps are thirds."""


def fold_replacements(
    causes: list[Cause], of_a: Collection[str], of_b: Collection[str], delta_ns: int, *, within_ops: bool = False
) -> list[Cause]:
    """Return the causes, with kernels and collectives of A that others of B replaced folded into one row.

    First within the launching op at the same line of the same module, as kernel names change with the device and the
    version; then within the op alone, then within the phase, where collectives replace only those of the same role, or
    the same collective where one side does not tell its role (a kernel that the profiler does not mark as one).
    Listed separately they would dwarf everything else and cancel; one row shows what the replacement changed. `of_a`,
    `of_b` are the keys that either side has, or has more of. `within_ops`: kernels do not replace those of other ops.
    What both sides do as often replaced nothing, wherever they do it.
    """
    for place in (_call, _launching_op):
        causes = _folded(causes, of_a, of_b, delta_ns, place, lambda cause: cause.name)
    if within_ops:
        return causes
    causes = _folded(causes, of_a, of_b, delta_ns, _phase_and_role, _bare_name)
    roleless = {_collective(cause) for cause in causes if cause.kind == "collective" and FOR not in cause.name}
    return _folded(
        causes,
        of_a,
        of_b,
        delta_ns,
        lambda cause: _collective(cause) if _collective(cause) in roleless else "",
        lambda cause: cause.name,
    )


def _phase_and_role(cause: Cause) -> str:
    role = cause.name.partition(FOR)[2] if cause.kind == "collective" else ""
    return f"{cause.phase}|{role}" if cause.phase and role else cause.phase


def _collective(cause: Cause) -> str:
    return f"{cause.phase}|{cause.name.partition(FOR)[0]}" if cause.kind == "collective" else ""


def _bare_name(cause: Cause) -> str:
    """Return a kernel without the op that launched it, a collective without its role."""
    name = cause.work
    return name.partition(FOR)[0] if cause.kind == "collective" else name.rpartition(LAUNCHES)[2]


def _launching_op(cause: Cause) -> str:
    op = cause.name.rpartition(LAUNCHES)[0]
    return f"{cause.phase}|{op}" if op else ""


def _call(cause: Cause) -> str:
    op, where = _launching_op(cause), [part for part in (line_function(cause.line), cause.module) if part]
    return "|".join([op, *where]) if op and where else ""


def _folded(
    causes: list[Cause],
    of_a: Collection[str],
    of_b: Collection[str],
    delta_ns: int,
    place: Callable[[Cause], str],
    what: Callable[[Cause], str],
) -> list[Cause]:
    """Return the causes with one row for each place where A's one-sided causes meet B's; "" is no place.

    A's are only those of which B does fewer in all, by `what` they do, and B's those of which it does more.
    """
    folded, one_sided, more = [], dict[tuple[str, str], list[Cause]](), defaultdict[tuple[str, str], float](float)
    for cause in causes:
        more[cause.kind, what(cause)] += cause.delta_num
    for cause in causes:
        sign = (cause.key in of_b) - (cause.key in of_a)
        is_one_sided = sign * more[cause.kind, what(cause)] > _NONE
        if cause.kind in ("kernel", "collective") and is_one_sided and place(cause):
            one_sided.setdefault((cause.kind, place(cause)), []).append(cause)
        else:
            folded.append(cause)
    for (kind, where), members in one_sided.items():
        removed = [cause for cause in members if cause.key in of_a]
        added = [cause for cause in members if cause.key in of_b]
        key = f"{kind}|{where}|replaced"
        folded += [_replacement(key, removed, added, delta_ns)] if removed and added else members
    return folded


def _replacement(key: str, removed: list[Cause], added: list[Cause], delta_ns: int) -> Cause:
    first, members = removed[0], (*removed, *added)
    total = sum(cause.delta_ns for cause in members)
    num = round(sum(cause.delta_num for cause in members), 9) + 0.0  # thirds that cancel are no change
    count_ns = total if num else 0
    has_bytes = all(cause.delta_bytes for cause in members)  # what one side does not record is no change
    return Cause(
        key=key,
        kind=first.kind,
        phase=first.phase,
        name=_replacement_name(removed, added),
        line=min(cause.line for cause in members) if len({line_function(cause.line) for cause in members}) == 1 else "",
        delta_num=num,
        delta_ns=total,
        count_ns=count_ns,
        dur_ns=total - count_ns,
        share_pct=share(total, delta_ns),
        delta_bytes=sum(cause.delta_bytes for cause in members) if has_bytes else 0,
        module=first.module if len({cause.module for cause in members}) == 1 else "",
    )


def _replacement_name(removed: list[Cause], added: list[Cause]) -> str:
    """Return `aten::mm > old (and 2 more) replaced by new`; the op only where it launched all of them.

    A collective whose role one side does not tell has the name with it.
    """
    names = {cause.name for cause in (*removed, *added)}
    if len({name.partition(FOR)[0] for name in names}) == 1:
        return max(names, key=len)
    ops = {cause.name.rpartition(LAUNCHES)[0] for cause in (*removed, *added)}
    op = f"{ops.pop()}{LAUNCHES}" if len(ops) == 1 else ""
    sides = []
    for causes in (removed, added):
        largest = max(causes, key=lambda cause: (abs(cause.delta_ns), cause.key))
        first, _ = without_more(largest.name.rpartition(LAUNCHES)[2])
        rest = sum(1 + without_more(cause.name)[1] for cause in causes) - 1
        sides.append(first + (f" (and {rest} more)" if rest else ""))
    return (op if op != LAUNCHES else "") + REPLACED_BY.join(sides)


_MAJORITY = 2


def replaced_together(groups: Sequence[tuple[int, ...]], parts: Contributions) -> list[tuple[int, ...]]:
    """Return the rows with those joined in which the host does one thing on A and others on B at the same places.

    Places between the same two calls of both sides, in one phase, line and module, and inside one op or outside of all,
    but not in the data loader: what workers took over is not replaced by how the process receives it.
    """
    of_label = np.empty(len(parts.labels), np.int64)
    for number, members in enumerate(groups):
        of_label[list(members)] = number
    is_host = np.array([label.kind == "host" for label in parts.labels], np.bool_)[parts.label]
    of_sides = (is_host & alone[parts.label] for alone in parts.is_alone)
    old, new = (group([parts.gap[of_side], of_label[parts.label[of_side]]]).keys.T for of_side in of_sides)
    num_places = np.bincount(np.r_[old[1], new[1]], minlength=len(groups))
    source, target = equal_pairs(old[0], new[0])
    pairs = group([old[1][source], new[1][target]])
    heads = [parts.labels[members[0]] for members in groups]
    joined = [[number] for number in range(len(groups))]  # the rows that each is joined with, one list for all of them
    by_count = sorted(zip(pairs.keys.tolist(), pairs.count(), strict=True), key=lambda pair: -pair[1])
    for (x, y), num in by_count:
        is_most, is_inside = (_MAJORITY * num > of(num_places[x], num_places[y]) for of in (max, min))
        is_placed = heads[x].place == heads[y].place and heads[x].phase not in LOADING
        is_same = heads[x].inner == heads[y].inner != ""
        is_in_one = heads[x].name == heads[y].name or not (heads[x].inner or heads[y].inner)
        is_replaced = is_in_one and parts.is_gone(heads[x], num) and parts.is_new(heads[y], num)
        if is_placed and ((is_most and is_same) or (is_inside and is_replaced)):
            _join(joined, x, y)
    distinct = {id(rows): rows for rows in joined}.values()
    return [tuple(label for row in sorted(rows) for label in groups[row]) for rows in distinct]


def _join(joined: list[list[int]], x: int, y: int) -> None:
    if joined[x] is not joined[y]:
        few, many = sorted((joined[x], joined[y]), key=len)
        many += few
        for row in few:
            joined[row] = many


def is_replacement(parts: Contributions, row: Sequence[int], least_ns: float) -> bool:
    """Return whether the work of a row took the place of other work: listed even where that costs nothing.

    Only if it takes `least_ns` in all steps: the odd short op is in another place by chance.
    """
    if int(parts.ns_of_labels[:, list(row)].sum(axis=1).max()) < least_ns:
        return False
    labels = [parts.labels[number] for number in row]
    is_named = any(REPLACED_BY in label.name or label.work in parts.others for label in labels)
    return is_named or bool(replaced_name(parts, row))


def replaced_name(parts: Contributions, row: Sequence[int]) -> str:
    """Return `old replaced by new (and 2 more)` of host ops that took the place of others, "" for any other row."""
    labels = [parts.labels[number] for number in row]
    if labels[0].kind != "host" or len({plain_name(label.work) for label in labels}) == 1:
        return ""
    of_sides = zip(parts.ns_of_labels[:, list(row)], parts.is_alone[:, list(row)], strict=True)
    sides = []
    for ns, alone in of_sides:
        order = np.argsort(-ns, kind="stable").tolist()
        sides.append(list(dict.fromkeys(labels[number].work for number in order if alone[number])))
    return REPLACED_BY.join(map(and_more, sides[::-1] if parts.is_swapped else sides)) if all(sides) else ""


def join_moved(causes: Sequence[Cause], delta_ns: int, phases: Collection[str]) -> list[Cause]:
    """Return the causes, those of a collective joined that is issued less often here and as much more often there.

    Of the same role; or of as many bytes, as the phase may be what tells the role. `phases` are those of both sides:
    what one of them calls by another name is no other place.
    """
    for is_of_role in (True, False):
        by_name: dict[str, list[Cause]] = defaultdict(list)
        for cause in causes:
            if cause.kind == "collective" and cause.delta_num and cause.phase in phases:
                by_name[cause.name if is_of_role else cause.name.partition(FOR)[0]].append(cause)
        moved = {name: members for name, members in by_name.items() if _cancel(members, also_bytes=not is_of_role)}
        keys = {cause.key for members in moved.values() for cause in members}
        joined = [_joined(name, members, delta_ns) for name, members in moved.items()]
        causes = [*(cause for cause in causes if cause.key not in keys), *joined]
    return list(causes)


def _cancel(members: Sequence[Cause], *, also_bytes: bool) -> bool:
    moved_bytes = sum(cause.delta_bytes for cause in members)
    return abs(sum(cause.delta_num for cause in members)) < _NONE and not (also_bytes and moved_bytes)


def _joined(name: str, members: Sequence[Cause], delta_ns: int) -> Cause:
    first, total = members[0], sum(cause.delta_ns for cause in members)
    phases, old, new = (
        AND.join(sorted({cause.phase for cause in members if sign * cause.delta_num >= 0})) for sign in (0, -1, 1)
    )
    one_line = len({line_function(cause.line) for cause in members}) == 1
    line = min(cause.line for cause in members) if one_line else ""
    module = first.module if len({cause.module for cause in members}) == 1 else ""
    return Cause(
        key="|".join((first.kind, phases, name, line_function(line), *filter(None, [module]), "moved")),
        kind=first.kind,
        phase=phases,
        name=name,
        line=line,
        delta_num=0.0,
        delta_ns=total,
        count_ns=0,
        dur_ns=total,
        share_pct=share(total, delta_ns),
        module=module,
        delta_bytes=sum(cause.delta_bytes for cause in members),
        sd_ns=round(sum(cause.sd_ns**2 for cause in members) ** 0.5),
        moved=f"from {old} to {new}" if old != new else "",
    )
