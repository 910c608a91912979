"""What the change did to each rank by itself: ranks that meet in collectives all take as long as the slowest."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.compare.attribution import ledger, whole_mean
from traceq.compare.result import RankDelta
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.intervals import span_index
from traceq.model import Run, Trace

__all__ = ["alone", "explained_rank", "rank_deltas", "waits_in"]

_LITTLE = 0.25
_TELLING = 0.005


def rank_deltas(a: Run, b: Run) -> tuple[RankDelta, ...]:
    """The mean traced step of every rank that both sides have, and how much of it is the rank's own, by rank."""
    of_a, of_b = ({trace.rank: trace for trace in run.traces} for run in (a, b))
    found = []
    for rank in sorted(of_a.keys() & of_b.keys()):
        (a_ns, own_a_ns), (b_ns, own_b_ns) = _mean_ns(of_a[rank]), _mean_ns(of_b[rank])
        found.append(RankDelta(rank, a_ns, b_ns, own_a_ns, own_b_ns))
    return tuple(found)


def explained_rank(a: Run, b: Run, deltas: Sequence[RankDelta]) -> int | None:
    """The rank whose difference is the job's: the one that changed alone, else the one that has most of its own to do
    on both sides together, since the others wait for it.

    Where no rank was traced on both sides, but each side has one trace, there is nothing to choose: the rank of A's.
    """
    if deltas:
        only = alone(deltas)
        return only.rank if only else max(deltas, key=lambda rank: rank.own_a_ns + rank.own_b_ns).rank
    return a.ranks[0] if len(a.traces) == len(b.traces) == 1 else None


def alone(deltas: Sequence[RankDelta]) -> RankDelta | None:
    """The rank whose own time changed by more than 0.5 % of its step, every other's by less than a quarter of that;
    None where none is the only one.
    """
    if len(deltas) < 2:
        return None
    first, *others = sorted(deltas, key=lambda rank: -abs(rank.own_delta_ns))
    telling = abs(first.own_delta_ns) > _TELLING * max(first.a_ns, first.b_ns)
    little = all(abs(rank.own_delta_ns) < _LITTLE * abs(first.own_delta_ns) for rank in others)
    return first if telling and little else None


def waits_in(a: Run, b: Run, deltas: Sequence[RankDelta], rank: int) -> str:
    """The collective in which the time that others spend in collectives changed most as `rank` changed; "" for none.

    Of the other ranks one is asked, whose time in them changed most.
    """
    sign = 1 if next(found for found in deltas if found.rank == rank).own_delta_ns > 0 else -1
    others = [found for found in deltas if found.rank != rank]
    other = max(others, key=lambda found: sign * (found.delta_ns - found.own_delta_ns))
    of_a, of_b = (_in_collectives(next(t for t in run.traces if t.rank == other.rank)) for run in (a, b))
    grown = {name: sign * (of_b.get(name, 0.0) - of_a.get(name, 0.0)) for name in sorted(of_a.keys() | of_b.keys())}
    name = max(grown, key=lambda name: grown[name], default="")
    return name if grown.get(name, 0.0) > 0 else ""


def _mean_ns(trace: Trace) -> tuple[int, int]:
    """(mean counted step, the same without the time in which only collectives run)."""
    found, done = steps(trace), activity(trace)
    windows = found.window[found.counted]
    total, num = int((windows[:, 1] - windows[:, 0]).sum()), len(windows)
    talks = (span_index(windows, done.parts[:, 0]) >= 0) & (done.doing == TimeCategory.EXPOSED_COMM)
    return whole_mean(total, num), whole_mean(total - int(done.ns[talks].sum()), num)


def _in_collectives(trace: Trace) -> dict[str, float]:
    """Ns of a step by name of collective in which nothing else runs."""
    found, spent = ledger(trace), dict[str, float]()
    for account in found.accounts:
        if account.kind == "collective":
            spent[account.name] = spent.get(account.name, 0.0) + account.ns / found.num_steps
    return spent
