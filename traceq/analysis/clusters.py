"""Which ranks are alike, and which stand out: on which hosts, in which phase?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._spread import each_rank, heat_view, spread_table
from traceq.analysis._wording import MOST_RANKS, more_rows
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.phase_times import PhaseTimes, RankTimes, phase_times, side_by_side
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.model import Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.stats.clustering import cluster_ranks
from traceq.units import Unit, format_ranks, format_value

POSITION = 54

_COLUMNS = (
    Column("key", "key"),
    Column("num_ranks", "alike", Unit.COUNT),
    Column("ranks", "ranks"),
    Column("num_hosts", "hosts", Unit.COUNT),
    Column("hosts", "on"),
    Column("own_ns", "own time", Unit.NS),
    Column("waits_ns", "waits", Unit.NS),
    Column("late_ns", "more than most", Unit.DELTA_NS),
    Column("phase", "most of it in"),
    Column("phase_ns", "there", Unit.DELTA_NS),
    Column("category", "by"),
)
_OF_LATE = 4
"""Columns from the right that say nothing of the largest cluster."""
_APART, _TELLING = 0.01, 0.05
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Cluster:
    """Ranks that are alike, and what they take more than the largest cluster: all in all, and in the phase and the
    category in which most of that lies. `members` int64[M] index the ranks.
    """

    members: NDArray[np.int64]
    own_ns: float
    waits_ns: float
    late_ns: float
    phase: str
    phase_ns: float
    category: str


def summarize(trace: Trace) -> PhaseTimes:
    """What a rank spends a step on, by phase."""
    return phase_times(trace)


def merge(job: Job, parts: Sequence[PhaseTimes]) -> Report:
    """Clusters of like ranks, how times spread over them, and each rank's own time by phase; nothing for one rank.

    Views only for more ranks than people would read one by one.
    """
    found = side_by_side(parts) if len(parts) > 1 else None
    clusters = _clusters(found) if found is not None else []
    rows = tuple(_row(found, cluster) for cluster in clusters) if found is not None else ()
    tables = (Table("clusters", "Ranks alike", _COLUMNS, rows), spread_table(found), each_rank(found))
    if found is None or len(parts) <= MOST_RANKS:
        return Report("clusters", tables)
    return Report("clusters", tables, (_view(rows), heat_view(found, tables[1])), _findings(found, clusters))


def _clusters(found: RankTimes) -> list[_Cluster]:
    """The largest first, then the latest; up to eight ranks are too few to say what is usual."""
    num = len(found.ranks)
    number = (
        cluster_ranks(found.own, _APART * float(np.median(found.step))) if num > MOST_RANKS else np.zeros(num, np.int64)
    )
    most = found.ns[number == 0].mean(axis=0)
    clusters = [_cluster(found, np.flatnonzero(number == at), most) for at in range(int(number.max()) + 1)]
    return [clusters[0], *sorted(clusters[1:], key=lambda cluster: -cluster.late_ns)]


def _cluster(found: RankTimes, members: NDArray[np.int64], most: NDArray[np.float64]) -> _Cluster:
    own_ns, waits_ns = (float(times[members].sum(axis=1).mean()) for times in (found.own, found.waits))
    more = found.ns[members].mean(axis=0) - most
    more[:, TimeCategory.EXPOSED_COMM] = 0
    late_ns = float(more.sum())
    more_so = -more if late_ns < 0 else more
    phase = int(more_so.sum(axis=1).argmax())
    category = TimeCategory(int(more_so[phase].argmax())).name.lower()
    if not more.any():
        return _Cluster(members, own_ns, waits_ns, 0.0, "", 0.0, "")
    return _Cluster(members, own_ns, waits_ns, late_ns, found.phases[phase], float(more[phase].sum()), category)


def _row(found: RankTimes, cluster: _Cluster) -> tuple[Cell, ...]:
    ranks, hosts = _names(found, cluster)
    who = (f"rank {ranks[0]}", len(ranks), format_ranks(ranks), len(hosts) or None, _few(hosts))
    times = (round(cluster.own_ns), round(cluster.waits_ns), round(cluster.late_ns))
    return (*who, *times, cluster.phase, round(cluster.phase_ns), cluster.category)


def _names(found: RankTimes, cluster: _Cluster) -> tuple[list[int], list[str]]:
    """(ranks, hosts) of a cluster; no host where one of them is not told."""
    members = cluster.members.tolist()
    hosts = list(dict.fromkeys(found.hosts[at] for at in members))
    return [found.ranks[at] for at in members], hosts if all(hosts) else []


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _view(rows: Sequence[tuple[Cell, ...]]) -> Table:
    untold = (None,) * _OF_LATE
    shown = tuple((*row[1:-_OF_LATE], *(row[-_OF_LATE:] if at else untold)) for at, row in enumerate(rows[:MOST_RANKS]))
    note = f"Own time: a step without the time in which only collectives run. {more_rows(len(rows) - len(shown))}"
    return Table("clusters", "Ranks that are alike", _COLUMNS[1:], shown, note=note.strip())


def _findings(found: RankTimes, clusters: Sequence[_Cluster]) -> tuple[Finding, ...]:
    """Ranks for which most others wait: those are alike, and wait longer by at least half of what these are late."""
    most = clusters[0]
    late = [cluster for cluster in clusters[1:] if 0 < cluster.late_ns <= 2 * (most.waits_ns - cluster.waits_ns)]
    if 2 * len(most.members) <= len(found.ranks) or not late:
        return ()
    told = [f"{len(most.members):,} ranks alike", *(_told(found, cluster) for cluster in late[:2])]
    if rest := sum(len(cluster.members) for cluster in late[2:]):
        told.append(f"{rest:,} more late in other ways")
    severity = "high" if late[0].late_ns >= _TELLING * float(np.median(found.step)) else "medium"
    key = f"rank {found.ranks[late[0].members[0]]}"
    return (Finding("late_ranks", severity, ", ".join(told), round(late[0].late_ns), key),)


def _told(found: RankTimes, cluster: _Cluster) -> str:
    """`8 on one host (node017: ranks 136-143) late by 41 ms in forward`."""
    ranks, hosts = _names(found, cluster)
    which = f"rank{'s' if len(ranks) > 1 else ''} {_few(format_ranks(ranks).split(', '))}"
    where = {0: f"({which})", 1: f"on one host ({', '.join(hosts)}: {which})"}
    on = where.get(len(hosts), f"on {len(hosts):,} hosts ({which})")
    return f"{len(ranks):,} {on} late by {format_value(cluster.phase_ns, Unit.NS)} in {cluster.phase}"
