"""What ops take longer, divided in more calls, more work per call, and slower work.

The time of an op is its calls times the work of a call times the time per unit of work, and each may change. With
L(a, b) the logarithmic mean of the times, L ln(calls B / calls A) is the part of the calls, and so on: the parts add up
to the delta exactly, and those of diff(B, A) are their negatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log1p

from traceq.facts.events.device_work import device_work, lacks_device_rows
from traceq.facts.roofline.modelled_ops import TimeKind
from traceq.facts.roofline.op_work import OpWork, RankWork, rank_work
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.model import Trace

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
"""Part of the time of ops that must have a model on both sides to compare ops whose calls differ in number."""

_Side = Mapping[tuple[str, str, bool, str], "_Sums"]


@dataclass(slots=True)
class _Sums:
    """Work of one role with one set of shapes on one side, in all counted steps."""

    ns: int = 0
    work: int = 0
    calls: int = 0
    is_bound: bool = False
    ops: set[str] = field(default_factory=set)

    def add(self, other: _Sums) -> None:
        """Add the sums of other shapes."""
        self.ns += other.ns
        self.work += other.work
        self.calls += other.calls
        self.is_bound |= other.is_bound
        self.ops |= other.ops


@frozen
class WorkDelta:
    """Ops of one role and phase in a mean counted step of the explained rank.

    [How they are compared](method.md#more-work-or-slower-work).
    """

    phase: str
    role: str
    """`matrix products (addmm, mm)`, ..., else the op."""
    is_flops: bool
    """Work is FLOPs, else bytes."""
    a_ns: int
    b_ns: int
    a_work: int
    b_work: int
    a_calls: float
    b_calls: float
    calls_ns: int
    """Part of the delta by more calls."""
    more_ns: int
    """By more calls, or more work in each."""
    slower_ns: int
    """By slower work; with `more_ns` it adds up to the delta."""
    is_bound: bool

    @property
    def delta_ns(self) -> int:
        """B's time minus A's."""
        return self.b_ns - self.a_ns

    @property
    def per_call_ns(self) -> int:
        """Part of the delta by more work per call."""
        return self.more_ns - self.calls_ns


def log_mean(a: float, b: float) -> float:
    """Return the logarithmic mean of two positive numbers."""
    if a == b:
        return a
    return (b - a) / (log1p((b - a) / a) if a < 2 * b < 4 * a else log(b / a))  # of close numbers b / a rounds to 1


def split(a_ns: float, b_ns: float, *factors: tuple[float, float]) -> tuple[float, ...]:
    """Return the parts of b_ns - a_ns by each factor of the times, given on A and on B, and by what they leave.

    What only one side has is all due to the first factor.
    """
    is_one_sided = any(a != b and not (a > 0 and b > 0) for a, b in factors)
    if is_one_sided or not (a_ns > 0 and b_ns > 0):
        return b_ns - a_ns, *(0.0 for _ in factors)
    parts = [log_mean(a_ns, b_ns) * log(b / a) if a != b else 0.0 for a, b in factors]
    return *parts, b_ns - a_ns - sum(parts)


def work_deltas(a: Trace, b: Trace) -> tuple[WorkDelta, ...]:
    """Return ops with a model by phase and role, those whose time differs most first.

    None if one side has no device, or has one that is not recorded: its host's time is that of launches.

    Where 5 % of the time of either side's ops has no model, only roles with as many calls on both sides in every phase:
    of others, what one side does in ops with a model the other may do without (a compiled region, an attention of one's
    own). Calls with the same shapes on both sides are compared with each other, all others of a role together.
    """
    if bool(len(device_work(a))) != bool(len(device_work(b))) or lacks_device_rows(a) or lacks_device_rows(b):
        return ()
    works = rank_work(a), rank_work(b)
    sides = _by_shapes(works[0].rows), _by_shapes(works[1].rows)
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
                total.add(side[key])
    for role, pair in rest.items():
        of_role[role].append(pair)
    names = _names_with_ops(of_role)
    deltas = [_delta((role[0], names[role[1]], role[2]), pairs, num) for role, pairs in of_role.items()]
    if min(map(_modelled_share, works)) < _MODELLED_SHARE:
        uneven = {(delta.role, delta.is_flops) for delta in deltas if delta.a_calls != delta.b_calls}
        deltas = [delta for delta in deltas if (delta.role, delta.is_flops) not in uneven]
    return tuple(sorted(deltas, key=lambda delta: -abs(delta.delta_ns)))


def _names_with_ops(of_role: Mapping[tuple[str, str, bool], Sequence[tuple[_Sums, _Sums]]]) -> dict[str, str]:
    """Return `matrix products (addmm, mm)` by role, with the ops of a role that may be done by several."""
    ops: dict[str, set[str]] = defaultdict(set)
    for (_, role, _), pairs in of_role.items():
        ops[role].update(*(side.ops for pair in pairs for side in pair))
    kinds = set(_ROLES.values())
    return {role: f"{role} ({', '.join(sorted(of))})" if role in kinds else role for role, of in ops.items()}


def _modelled_share(work: RankWork) -> float:
    """Return the part of the device time of computing work whose FLOPs or bytes are known."""
    kinds = (TimeKind.MODELLED, TimeKind.ARGUMENTS, TimeKind.NO_MODEL, TimeKind.NO_SHAPE, TimeKind.NO_OP)
    computing = [work.ns_of_kind[kind] for kind in kinds]
    return computing[0] / sum(computing) if sum(computing) else 0.0


def _by_shapes(rows: Sequence[OpWork]) -> _Side:
    sums: dict[tuple[str, str, bool, str], _Sums] = defaultdict(_Sums)
    for row in rows:
        if not row.step_ns or row.model == "arguments":
            continue
        is_flops = row.model == "FLOPs"
        op = row.op.removeprefix("aten::")
        role = _ROLES.get(op, row.op)
        each = sums[row.phase, role, is_flops, f"{row.op} {row.shapes}" if row.shapes else ""]
        amount = row.step_flops if is_flops else row.step_bytes
        each.add(_Sums(row.step_ns, amount, row.step_num, row.is_bound, {op}))
    return sums


def _delta(role: tuple[str, str, bool], pairs: Sequence[tuple[_Sums, _Sums]], num: tuple[int, int]) -> WorkDelta:
    a_ns, b_ns, a_work, b_work = (
        round(sum(getattr(pair[side], name) for pair in pairs) / num[side])
        for name, side in (("ns", 0), ("ns", 1), ("work", 0), ("work", 1))
    )
    parts = [split(a.ns / num[0], b.ns / num[1], *_factors(a, b, num)) for a, b in pairs]
    calls_ns, per_call_ns = (round(sum(part[index] for part in parts)) for index in (0, 1))
    more_ns = calls_ns + per_call_ns
    a_calls, b_calls = (sum(pair[side].calls for pair in pairs) / num[side] for side in (0, 1))
    is_bound = any(each.is_bound for pair in pairs for each in pair)
    return WorkDelta(
        *role, a_ns, b_ns, a_work, b_work, a_calls, b_calls, calls_ns, more_ns, b_ns - a_ns - more_ns, is_bound
    )


def _factors(a: _Sums, b: _Sums, num: tuple[int, int]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (calls per step, work per call), each on A and on B."""
    per_call = [side.work / side.calls if side.calls else 0.0 for side in (a, b)]
    return (a.calls / num[0], b.calls / num[1]), (per_call[0], per_call[1])
