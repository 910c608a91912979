"""Collectives that both sides issue as often, but in other phases: one row each, with both phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from traceq.compare.cost_centers import FOR
from traceq.compare.result import AND, Cause, share
from traceq.facts.timeline.call_sites import line_function

__all__ = ["join_moved"]

_NONE = 1e-6
"""Calls per step that are a rounded 0: means over steps are thirds."""


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
