"""What ops take longer on the device, divided in more work and slower work.

The time of an op is its work times the time per unit of it, and both may change. With L(a, b) the logarithmic mean of
the times, L ln(work B / work A) is the part of the work and L ln(pace B / pace A) that of the pace: the two add up to
the delta exactly, and those of diff(B, A) are their negatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from traceq.facts.events.device_work import device_work
from traceq.facts.roofline.modelled_ops import TimeKind
from traceq.facts.roofline.op_work import OpWork, RankWork, rank_work
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.model import Trace

__all__ = ["WorkDelta", "log_mean", "split", "work_deltas"]

_ROLES = {
    "_grouped_mm": "grouped products",
    "_scaled_grouped_mm": "grouped products",
    "mm": "matrix products",
    "addmm": "matrix products",
    "bmm": "batched products",
    "baddbmm": "batched products",
    "_scaled_mm": "matrix products",
    "_addmm_activation": "matrix products",
}
"""Ops that do the same kind of work under several names, without `aten::`."""

_MODELLED_SHARE = 0.95
"""Part of the time of ops that must have a model on both sides."""

_Side = Mapping[tuple[str, str, bool, str], "_Sums"]


@dataclass(slots=True)
class _Sums:
    """Work of one role with one set of shapes on one side, in all counted steps."""

    ns: int = 0
    work: int = 0
    is_bound: bool = False


@frozen
class WorkDelta:
    """Ops of one role in one phase, in a mean step on either side.

    `is_flops`: `a_work` and `b_work` are FLOPs, else bytes; `is_bound`: at most so many. `more_ns` is the part of the
    delta that more work takes, `slower_ns` that of slower work; they add up to the delta.
    """

    phase: str
    role: str
    is_flops: bool
    a_ns: int
    b_ns: int
    a_work: int
    b_work: int
    more_ns: int
    slower_ns: int
    is_bound: bool

    @property
    def delta_ns(self) -> int:
        """B's time minus A's."""
        return self.b_ns - self.a_ns


def log_mean(a: float, b: float) -> float:
    """Return the logarithmic mean of two positive numbers."""
    return a if a == b else (b - a) / log(b / a)


def split(a_ns: float, b_ns: float, a_work: float, b_work: float) -> tuple[float, float]:
    """Return the parts of b_ns - a_ns by (more work, slower work). What only one side has is work added or removed."""
    if not (a_ns > 0 and b_ns > 0 and a_work > 0 and b_work > 0):
        return b_ns - a_ns, 0.0
    more = log_mean(a_ns, b_ns) * log(b_work / a_work)
    return more, b_ns - a_ns - more


def work_deltas(a: Trace, b: Trace) -> tuple[WorkDelta, ...]:
    """Return ops with a model by phase and role, those whose time differs most first; none without a device.

    None, too, where 5 % of the time of either side's ops has no model: what one side does in them (a compiled region,
    an attention of one's own) the other may do in ops that have one. Calls with the same shapes on both sides are
    compared with each other, all others of a role together.
    """
    if not len(device_work(a)) or not len(device_work(b)):
        return ()
    if min(_modelled_share(rank_work(side)) for side in (a, b)) < _MODELLED_SHARE:
        return ()
    sides = _by_shapes(rank_work(a).rows), _by_shapes(rank_work(b).rows)
    num = int(steps(a).counted.sum()), int(steps(b).counted.sum())
    of_role: dict[tuple[str, str, bool], list[tuple[_Sums, _Sums]]] = defaultdict(list)
    rest: dict[tuple[str, str, bool], tuple[_Sums, _Sums]] = defaultdict(lambda: (_Sums(), _Sums()))
    for key in dict.fromkeys((*sides[0], *sides[1])):
        role = key[:3]
        if key in sides[0] and key in sides[1] and key[3]:
            of_role[role].append((sides[0][key], sides[1][key]))
            continue
        for total, side in zip(rest[role], sides, strict=True):
            if key in side:
                total.ns += side[key].ns
                total.work += side[key].work
                total.is_bound |= side[key].is_bound
    for role, pair in rest.items():
        of_role[role].append(pair)
    deltas = [_delta(role, pairs, num) for role, pairs in of_role.items()]
    return tuple(sorted(deltas, key=lambda delta: -abs(delta.delta_ns)))


def _modelled_share(work: RankWork) -> float:
    """Return the part of the device time of computing work whose FLOPs or bytes are known."""
    kinds = (TimeKind.MODELLED, TimeKind.ARGUMENTS, TimeKind.NO_MODEL, TimeKind.NO_SHAPE, TimeKind.NO_OP)
    computing = [work.ns_of_kind[kind] for kind in kinds]
    return computing[0] / sum(computing) if sum(computing) else 0.0


def _by_shapes(rows: Sequence[OpWork]) -> _Side:
    sums: dict[tuple[str, str, bool, str], _Sums] = defaultdict(_Sums)
    for row in rows:
        if not row.step_ns:
            continue
        is_flops = row.model == "FLOPs"
        role = _ROLES.get(row.op.removeprefix("aten::"), row.op)
        each = sums[row.phase, role, is_flops, f"{row.op} {row.shapes}" if row.shapes else ""]
        each.ns += row.step_ns
        each.work += row.step_flops if is_flops else row.step_bytes
        each.is_bound |= row.is_bound
    return sums


def _delta(role: tuple[str, str, bool], pairs: Sequence[tuple[_Sums, _Sums]], num: tuple[int, int]) -> WorkDelta:
    a_ns, b_ns, a_work, b_work = (
        round(sum(getattr(pair[side], name) for pair in pairs) / num[side])
        for name, side in (("ns", 0), ("ns", 1), ("work", 0), ("work", 1))
    )
    parts = [split(a.ns / num[0], b.ns / num[1], a.work / num[0], b.work / num[1]) for a, b in pairs]
    more_ns = round(sum(more for more, _ in parts))
    is_bound = any(each.is_bound for pair in pairs for each in pair)
    return WorkDelta(*role, a_ns, b_ns, a_work, b_work, more_ns, b_ns - a_ns - more_ns, is_bound)
