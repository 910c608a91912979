"""Which ranks behave the same, and which stand out: on which hosts, in which phase?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._wording import MOST_RANKS, category_term, more_rows
from traceq.analysis.ranks import late_unprofiled
from traceq.claims.claim import Claim, Subject, measured
from traceq.claims.limits import MOST, NOTABLE
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, ns_by_phase
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import Column, Report, Table, column
from traceq.stats.ranks import cluster_ranks
from traceq.units import Unit, format_ranks, format_value, shades

_MOST_NAMES = 3
_WAITS, _STEP = "waits", "step"
_CELLS = 32


@frozen
class ClusterRow:
    """Similar ranks, the largest cluster first; up to eight ranks are one."""

    key: str = column("key", is_hidden=True)
    num_ranks: int = column("size", Unit.COUNT)
    ranks: str = column("ranks")
    """`0-7, 16`."""
    num_hosts: int | None = column("hosts", Unit.COUNT)
    hosts: str = column("on")
    """The first three."""
    own_ns: int = column("own time", Unit.NS)
    """Mean step minus exposed communication."""
    waits_ns: int = column("waits", Unit.NS)
    """Mean exposed communication."""
    late_ns: int | None = column("late by", Unit.DELTA_NS)
    phase: str | None = column("mostly in")
    """In which they are latest."""
    phase_ns: int | None = column("there", Unit.DELTA_NS)
    """Late there."""
    category: str | None = column("by")


_Cluster = tuple[ClusterRow, list[int], list[str]]
"""Similar ranks as a row, which ranks they are, and on which hosts; no host where one of them is unknown."""


@frozen(eq=False)
class PhaseTimes:
    """One rank: `ns` float64[P, TimeCategory] of a counted step in each of P `phases`, in order of occurrence."""

    rank: int
    host: str
    phases: tuple[str, ...]
    ns: NDArray[np.float64]


@frozen(eq=False)
class RankTimes:
    """R ranks: `ns` float64[R, P, TimeCategory] of a step in each of P `phases`; `hosts` "" where unknown."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    phases: tuple[str, ...]
    ns: NDArray[np.float64]

    @property
    def step(self) -> NDArray[np.float64]:
        """float64[R] ns: a whole step."""
        return np.asarray(self.ns.sum(axis=(1, 2)))

    @property
    def waits(self) -> NDArray[np.float64]:
        """float64[R, P] ns: exposed communication."""
        return self.ns[:, :, int(TimeCategory.EXPOSED_COMM)]

    @property
    def local(self) -> NDArray[np.float64]:
        """float64[R, P] ns: step time minus exposed communication; it may differ between ranks with equal steps."""
        return np.asarray(self.ns.sum(axis=2) - self.waits)


def summarize(trace: Trace) -> PhaseTimes:
    """Return the times that a rank spends in a step, by phase."""
    trace_phases = phases(trace)
    order = [trace_phases.names.index(name) for name in trace_phases.in_order]
    ns = ns_by_phase(trace)[order] / int(steps(trace).counted.sum())
    return PhaseTimes(trace.rank, trace.host, trace_phases.in_order, ns)


def rank_times(parts: Sequence[PhaseTimes]) -> RankTimes:
    """Return the times of all ranks; phases in order of first use, without those in which no rank spends time."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.phases))
    ns = np.zeros((len(parts), len(names), len(TimeCategory)))
    for index, part in enumerate(parts):
        ns[index, [names.index(name) for name in part.phases]] = part.ns
    used = np.flatnonzero(ns.any(axis=(0, 2)))
    used_names = tuple(names[index] for index in used.tolist())
    return RankTimes(tuple(part.rank for part in parts), tuple(part.host for part in parts), used_names, ns[:, used])


def merge(job: Job, parts: Sequence[PhaseTimes]) -> Report:
    """Return clusters of similar ranks, the spread of times over ranks, and each rank's own time by phase.

    Nothing for one rank; views only for more ranks than people would read one by one.
    """
    times = rank_times(parts) if len(parts) > 1 else None
    clusters = _clusters(times) if times is not None else []
    rows = [row for row, *_ in clusters]
    spread = Table.of("percentiles", "Spread over ranks", _PercentileRow, _percentiles(times) if times else ())
    phases = Table.of("rank_phases", "Ranks by phase", _RankPhaseRow, _by_phase(times) if times else ())
    tables = (Table.of("clusters", "Clusters of ranks", ClusterRow, rows), spread, phases)
    if times is None or len(parts) <= MOST_RANKS:
        return Report("clusters", tables)
    return Report("clusters", tables, (_view(rows), _heat_view(times, spread)), _findings(job, times, clusters))


def _clusters(times: RankTimes) -> list[_Cluster]:
    """Return the largest first, then the latest; up to eight ranks are too few to tell what is usual."""
    num = len(times.ranks)
    number = np.zeros(num, np.int64)
    if num > MOST_RANKS:
        number = cluster_ranks(times.local, NOTABLE * float(np.median(times.step)))
    usual = times.ns[number == 0].mean(axis=0)
    clusters = [_cluster(times, np.flatnonzero(number == index), usual) for index in range(int(number.max()) + 1)]
    return [clusters[0], *sorted(clusters[1:], key=lambda cluster: -(cluster[0].late_ns or 0))]


def _cluster(times: RankTimes, members: NDArray[np.int64], usual: NDArray[np.float64]) -> _Cluster:
    """Return some ranks, and the time that they take more than the `usual` float64[P, TimeCategory] ns."""
    own_ns, waits_ns = (float(values[members].sum(axis=1).mean()) for values in (times.local, times.waits))
    more = times.ns[members].mean(axis=0) - usual
    more[:, TimeCategory.EXPOSED_COMM] = 0
    late_ns = float(more.sum())
    signed = -more if late_ns < 0 else more
    phase = int(signed.sum(axis=1).argmax())
    ranks = [times.ranks[index] for index in members.tolist()]
    hosts = list(dict.fromkeys(times.hosts[index] for index in members.tolist()))
    hosts = hosts if all(hosts) else []
    row = ClusterRow(
        key=f"rank {ranks[0]}",
        num_ranks=len(ranks),
        ranks=format_ranks(ranks),
        num_hosts=len(hosts) or None,
        hosts=_few(hosts),
        own_ns=round(own_ns),
        waits_ns=round(waits_ns),
        late_ns=round(late_ns),
        phase=times.phases[phase] if more.any() else "",
        phase_ns=round(float(more[phase].sum())),
        category=TimeCategory(int(signed[phase].argmax())).name.lower() if more.any() else "",
    )
    return row, ranks, hosts


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _view(rows: Sequence[ClusterRow]) -> Table:
    largest = replace(rows[0], late_ns=None, phase=None, phase_ns=None, category=None)
    shown = [largest, *rows[1:MOST_RANKS]]
    note = f"{sentences.OWN_TIME} {more_rows(len(rows) - len(shown))}".strip()
    return Table.of("clusters", sentences.CLUSTERS, ClusterRow, shown, note=note).visible


def _findings(job: Job, times: RankTimes, clusters: Sequence[_Cluster]) -> tuple[Claim, ...]:
    """Return the late ranks that most others wait for.

    Most ranks are one cluster, and wait longer than the late ones by at least half of what these are late. Where a run
    has enough unprofiled steps, most of a cluster has to be late in these, too.
    """
    (most, *_), confirmed = clusters[0], late_unprofiled(job)
    late = [each for each in clusters[1:] if 0 < MOST * (each[0].late_ns or 0) <= most.waits_ns - each[0].waits_ns]
    if confirmed is not None:
        late = [each for each in late if 2 * len(confirmed.intersection(each[1])) > each[0].num_ranks]
    if 2 * most.num_ranks <= len(times.ranks) or not late:
        return ()
    worst, ranks, hosts = late[0]
    more = [rank for _, more_ranks, _ in late[1:] for rank in more_ranks]
    measures = measured(
        ranks=_few_ranks(ranks),
        num_late=len(ranks),
        late_ns=worst.late_ns,
        phase_ns=worst.phase_ns,
        category=category_term(worst.category or ""),
        host=hosts[0] if len(hosts) == 1 else "",
        num_hosts=len(hosts) or None,
        num_alike=most.num_ranks,
        more_ranks=_few_ranks(more) if more else "",
    )
    subject = Subject(phase=worst.phase or "", key=worst.key)
    return (Claim("late_ranks", worst.late_ns or 0, subject, measures),)


def _few_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_few(format_ranks(ranks).split(', '))}"


@frozen
class _PercentileRow:
    """Percentiles over ranks."""

    key: str = column("key", is_hidden=True)
    name: str = column("phase")
    """A phase (own time in it), `waits` (exposed communication) or `step`."""
    min_ns: int = column("min", Unit.NS)
    p5_ns: int = column("p5", Unit.NS)
    median_ns: int = column("median", Unit.NS)
    p95_ns: int = column("p95", Unit.NS)
    max_ns: int = column("max", Unit.NS)
    max_rank: int = column("on rank", Unit.COUNT)
    max_host: str = column("host")


@frozen
class _RankPhaseRow:
    """Own time and waits in one phase of a mean step."""

    rank: int = column("rank", Unit.COUNT)
    host: str = column("host")
    phase: str = column("phase")
    own_ns: int = column("own time", Unit.NS)
    """Mean, minus `waits_ns`."""
    waits_ns: int = column("waits", Unit.NS)


def _heat_view(times: RankTimes, spread: Table) -> Table:
    """Return the percentiles, and beside each phase a line of cells shaded by the time above the median."""
    opens, cell = _cells(times)
    above = [np.maximum.reduceat(values, opens) - np.median(values) for values in times.local.T]
    darkest = max(float(values.max()) for values in above) or 1.0
    lines = [shades((values / darkest).tolist()) for values in above]
    note = sentences.SHADES.format(cell=cell, time=format_value(darkest, Unit.NS))
    ranks = Column("each", f"ranks {times.ranks[0]} to {times.ranks[-1]}")
    view = spread.visible.with_column(ranks, [*lines, "", ""])
    return replace(view, title=sentences.RANKS_BY_PHASE, note=note)


def _percentiles(times: RankTimes) -> list[_PercentileRow]:
    columns = [*times.local.T, times.waits.sum(axis=1), times.step]
    rows = []
    for name, values in zip((*times.phases, _WAITS, _STEP), columns, strict=True):
        low, p5, median, p95, high = (round(float(value)) for value in np.percentile(values, [0, 5, 50, 95, 100]))
        slowest = int(values.argmax())
        rank, host = times.ranks[slowest], times.hosts[slowest]
        rows.append(_PercentileRow(name, name, low, p5, median, p95, high, rank, host))
    return rows


def _by_phase(times: RankTimes) -> list[_RankPhaseRow]:
    own_ns, waits_ns = (values.round().astype(np.int64).tolist() for values in (times.local, times.waits))
    return [
        _RankPhaseRow(rank, times.hosts[index], phase, own_ns[index][number], waits_ns[index][number])
        for index, rank in enumerate(times.ranks)
        for number, phase in enumerate(times.phases)
    ]


def _cells(times: RankTimes) -> tuple[NDArray[np.int64], str]:
    """Return (first rank of each cell, name of a cell): so many whole hosts, or ranks, that all cells fit."""
    hosts = np.array(times.hosts)
    opens = np.flatnonzero(np.r_[True, hosts[1:] != hosts[:-1]])
    by_host = all(times.hosts) and 1 < len(opens) < len(hosts)
    opens, noun = (opens, "host") if by_host else (np.arange(len(hosts)), "rank")
    num = -(-len(opens) // _CELLS)
    return opens[::num], f"{num} {noun}s" if num > 1 else f"a {noun}"
