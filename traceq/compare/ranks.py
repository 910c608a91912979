"""Delta of each rank by itself: ranks that meet in collectives all take as long as the slowest one."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.compare.attribution import accounts, whole_mean
from traceq.compare.result import RankDelta
from traceq.facts.ranks.job import RunRanks, StepTotals
from traceq.model import Run, Trace
from traceq.threshold import THRESHOLD_PCT

_LITTLE, _HALF = 0.25, 0.5


def rank_deltas(a: RunRanks, b: RunRanks) -> tuple[RankDelta, ...]:
    """Return the mean traced step of every rank of both sides, with and without exposed communication, by rank."""
    of_a, of_b = (dict(zip(side.run.ranks, side.totals, strict=True)) for side in (a, b))
    deltas = []
    for rank in sorted(of_a.keys() & of_b.keys()):
        (a_ns, own_a_ns), (b_ns, own_b_ns) = _mean_ns(of_a[rank]), _mean_ns(of_b[rank])
        deltas.append(RankDelta(rank, a_ns, b_ns, own_a_ns, own_b_ns))
    return tuple(deltas)


def explained_rank(a: Run, b: Run, deltas: Sequence[RankDelta]) -> int | None:
    """Return the rank whose difference is the job's; None without a choice.

    It is the only rank that changed, else the straggler: the rank with most time outside exposed communication on both
    sides together, for which the others wait. Where each side has one trace, of different ranks, it is A's.
    """
    if deltas:
        only = only_changed_rank(deltas)
        return only.rank if only else max(deltas, key=lambda rank: rank.own_a_ns + rank.own_b_ns).rank
    return a.ranks[0] if len(a.traces) == len(b.traces) == 1 else None


def only_changed_rank(deltas: Sequence[RankDelta]) -> RankDelta | None:
    """Return the only rank whose time outside exposed communication changed; None if several did, or none.

    It changed by more than the default threshold, in percent of its step, every other by less than a quarter of that,
    and the step by at least half of it: else it only waits less for others, or more, in a step that lasts as long.
    """
    if len(deltas) < 2:
        return None
    first, *others = sorted(deltas, key=lambda rank: -abs(rank.own_delta_ns))
    is_material = abs(first.own_delta_ns) > THRESHOLD_PCT / 100 * max(first.a_ns, first.b_ns)
    is_alone = all(abs(rank.own_delta_ns) < _LITTLE * abs(first.own_delta_ns) for rank in others)
    is_of_step = first.delta_ns * first.own_delta_ns > 0 and abs(first.delta_ns) >= _HALF * abs(first.own_delta_ns)
    return first if is_material and is_alone and is_of_step else None


def collective_waited_in(a: RunRanks, b: RunRanks, deltas: Sequence[RankDelta], rank: int) -> str:
    """Return the collective in which the exposed time of other ranks changed most as `rank` changed; "" for none.

    Reads one of the other ranks, whose time in collectives changed most.
    """
    sign = 1 if next(delta for delta in deltas if delta.rank == rank).own_delta_ns > 0 else -1
    others = [delta for delta in deltas if delta.rank != rank]
    other = max(others, key=lambda delta: sign * (delta.delta_ns - delta.own_delta_ns))
    of_a, of_b = (_exposed_ns(side.trace(other.rank)) for side in (a, b))
    change = {name: sign * (of_b.get(name, 0.0) - of_a.get(name, 0.0)) for name in sorted(of_a.keys() | of_b.keys())}
    name = max(change, key=lambda name: change[name], default="")
    return name if change.get(name, 0.0) > 0 else ""


def _mean_ns(totals: StepTotals) -> tuple[int, int]:
    """Return (mean counted step, the same minus exposed communication)."""
    return whole_mean(totals.ns, totals.num), whole_mean(totals.ns - totals.exposed_ns, totals.num)


def _exposed_ns(trace: Trace) -> dict[str, float]:
    """Return exposed ns per step by name of collective."""
    of_trace, exposed = accounts(trace), dict[str, float]()
    for label, ns in zip(of_trace.labels, of_trace.ns.sum(axis=1).tolist(), strict=True):
        if label.kind == "collective":
            exposed[label.name] = exposed.get(label.name, 0.0) + ns / of_trace.ns.shape[1]
    return exposed
