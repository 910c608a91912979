"""Which ranks behave the same, and which stand out: on which hosts, in which phase?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._rank_percentiles import each_rank, heat_view, spread_table
from traceq.analysis._stragglers import late_unprofiled
from traceq.analysis._wording import MOST_RANKS, in_traced_steps, more_rows
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.phase_times import PhaseTimes, RankTimes, phase_times, rank_times
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import Finding, Report, Table, column, found
from traceq.stats.clustering import cluster_ranks
from traceq.units import Unit, format_ranks, format_value

POSITION = 54

_MIN_GAP, _SEVERE = 0.01, 0.05
"""Part of the median step by which clusters must differ, and from which a late cluster is a severe finding."""
_MOST_NAMES = 3
_MOSTLY = 0.95
"""Part of a lateness from which it is said to be in one phase."""


@frozen
class ClusterRow:
    """Similar ranks, and the time they take more than the largest cluster (0 for that one).

    `late_ns` all in all; `phase_ns` in the phase, and `category` of it, that most of this is in. `num_hosts` None and
    `hosts` "" where a host is unknown.
    """

    key: str = column("key", is_hidden=True)
    num_ranks: int = column("size", Unit.COUNT)
    ranks: str = column("ranks")
    num_hosts: int | None = column("hosts", Unit.COUNT)
    hosts: str = column("on")
    own_ns: int = column("own time", Unit.NS)
    waits_ns: int = column("waits", Unit.NS)
    late_ns: int | None = column("late by", Unit.DELTA_NS)
    phase: str | None = column("mostly in")
    phase_ns: int | None = column("there", Unit.DELTA_NS)
    category: str | None = column("by")


@frozen(eq=False)
class _Cluster:
    """Similar ranks, and the time they take more than the largest cluster; `members` int64[M] index the ranks."""

    members: NDArray[np.int64]
    own_ns: float
    waits_ns: float
    late_ns: float
    phase: str
    phase_ns: float
    category: str


def summarize(trace: Trace) -> PhaseTimes:
    """Return the times that a rank spends in a step, by phase."""
    return phase_times(trace)


def merge(job: Job, parts: Sequence[PhaseTimes]) -> Report:
    """Return clusters of similar ranks, the spread of times over ranks, and each rank's own time by phase.

    Nothing for one rank; views only for more ranks than people would read one by one.
    """
    times = rank_times(parts) if len(parts) > 1 else None
    clusters = _clusters(times) if times is not None else []
    rows = [_row(times, cluster) for cluster in clusters] if times is not None else []
    spread = spread_table(times)
    tables = (Table.of("clusters", "Clusters of ranks", ClusterRow, rows), spread, each_rank(times))
    if times is None or len(parts) <= MOST_RANKS:
        return Report("clusters", tables)
    return Report("clusters", tables, (_view(rows), heat_view(times, spread)), _findings(job, times, clusters))


def _clusters(times: RankTimes) -> list[_Cluster]:
    """Return the largest first, then the latest; up to eight ranks are too few to tell what is usual."""
    num = len(times.ranks)
    number = np.zeros(num, np.int64)
    if num > MOST_RANKS:
        number = cluster_ranks(times.local, _MIN_GAP * float(np.median(times.step)))
    usual = times.ns[number == 0].mean(axis=0)
    clusters = [_cluster(times, np.flatnonzero(number == index), usual) for index in range(int(number.max()) + 1)]
    return [clusters[0], *sorted(clusters[1:], key=lambda cluster: -cluster.late_ns)]


def _cluster(times: RankTimes, members: NDArray[np.int64], usual: NDArray[np.float64]) -> _Cluster:
    own_ns, waits_ns = (float(values[members].sum(axis=1).mean()) for values in (times.local, times.waits))
    more = times.ns[members].mean(axis=0) - usual
    more[:, TimeCategory.EXPOSED_COMM] = 0
    late_ns = float(more.sum())
    signed = -more if late_ns < 0 else more
    phase = int(signed.sum(axis=1).argmax())
    category = TimeCategory(int(signed[phase].argmax())).name.lower()
    if not more.any():
        return _Cluster(members, own_ns, waits_ns, 0.0, "", 0.0, "")
    return _Cluster(members, own_ns, waits_ns, late_ns, times.phases[phase], float(more[phase].sum()), category)


def _row(times: RankTimes, cluster: _Cluster) -> ClusterRow:
    ranks, hosts = _names(times, cluster)
    return ClusterRow(
        key=f"rank {ranks[0]}",
        num_ranks=len(ranks),
        ranks=format_ranks(ranks),
        num_hosts=len(hosts) or None,
        hosts=_few(hosts),
        own_ns=round(cluster.own_ns),
        waits_ns=round(cluster.waits_ns),
        late_ns=round(cluster.late_ns),
        phase=cluster.phase,
        phase_ns=round(cluster.phase_ns),
        category=cluster.category,
    )


def _names(times: RankTimes, cluster: _Cluster) -> tuple[list[int], list[str]]:
    """Return (ranks, hosts) of a cluster; no host where one of them is unknown."""
    members = cluster.members.tolist()
    hosts = list(dict.fromkeys(times.hosts[index] for index in members))
    return [times.ranks[index] for index in members], hosts if all(hosts) else []


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _view(rows: Sequence[ClusterRow]) -> Table:
    largest = replace(rows[0], late_ns=None, phase=None, phase_ns=None, category=None)
    shown = [largest, *rows[1:MOST_RANKS]]
    note = f"Own time: step time minus exposed communication. {more_rows(len(rows) - len(shown))}".strip()
    return Table.of("clusters", "Clusters of similar ranks", ClusterRow, shown, note=note).visible


def _findings(job: Job, times: RankTimes, clusters: Sequence[_Cluster]) -> tuple[Finding, ...]:
    """Return the late ranks that most others wait for.

    Most ranks are one cluster, and wait longer than the late ones by at least half of what these are late. Where a run
    has enough unprofiled steps, most of a cluster has to be late in these, too.
    """
    most, confirmed = clusters[0], late_unprofiled(job)
    late = [cluster for cluster in clusters[1:] if 0 < cluster.late_ns <= 2 * (most.waits_ns - cluster.waits_ns)]
    if confirmed is not None:
        late = [each for each in late if 2 * len(confirmed & set(_names(times, each)[0])) > len(each.members)]
    if 2 * len(most.members) <= len(times.ranks) or not late:
        return ()
    parts = [_late(times, cluster) for cluster in late[:2]]
    if rest := sum(len(cluster.members) for cluster in late[2:]):
        parts.append(f"{rest:,} more late elsewhere")
    text = f"stragglers: {', '.join(parts)}; {len(most.members):,} ranks are alike ({in_traced_steps(job)})"
    severity = "high" if late[0].late_ns >= _SEVERE * float(np.median(times.step)) else "medium"
    key = f"rank {times.ranks[late[0].members[0]]}"
    return (
        found(
            "late_ranks",
            severity,
            text,
            round(late[0].late_ns),
            key,
            lead=f"stragglers: {parts[0]}",
            evidence=f"{len(most.members):,} ranks are alike",
        ),
    )


def _late(times: RankTimes, cluster: _Cluster) -> str:
    """Return `8 on one host (node017: ranks 136-143) late by 41.0 ms in forward`."""
    ranks, hosts = _names(times, cluster)
    which = f"rank{'s' if len(ranks) > 1 else ''} {_few(format_ranks(ranks).split(', '))}"
    where = {0: f"({which})", 1: f"on one host ({', '.join(hosts)}: {which})"}
    on = where.get(len(hosts), f"on {len(hosts):,} hosts ({which})")
    late, there = (format_value(ns, Unit.NS) for ns in (cluster.late_ns, cluster.phase_ns))
    is_most = cluster.phase_ns >= _MOSTLY * cluster.late_ns
    phase = f" in {cluster.phase}" if is_most else f", {there} of it in {cluster.phase}"
    return f"{len(ranks):,} {on} late by {late}{phase}"
