"""Which ops keep the host busy?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._rank_rows import largest_sums, of_all
from traceq.analysis._wording import more_rows, over_ranks
from traceq.claims.limits import LARGE
from traceq.facts.events.device_work import device_work
from traceq.facts.events.self_time import self_times
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit

_TOP = 5


@frozen
class HostRow:
    """Self time of ops or runtime calls of one name in one phase."""

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    name: str = column("op or call")
    num: int = column("num", Unit.COUNT)
    self_ns: int = column("self time", Unit.NS)


@frozen
class _Sum:
    """Rows of one phase and name over all ranks; `share` in percent of all self time."""

    phase: str = column("phase")
    name: str = column("op or call")
    num: int = column("num", Unit.COUNT)
    self_ns: int = column("self time", Unit.NS)
    share: float = column("of all", Unit.PERCENT)


@frozen
class _Rank:
    """One rank's rows, and whether it is host-bound for long enough to show them."""

    rows: tuple[HostRow, ...]
    is_host_bound: bool


def summarize(trace: Trace) -> _Rank:
    """Return self time of ops and runtime calls by phase and name, over all threads and the whole trace."""
    return _Rank(tuple(_rows(trace)), _is_host_bound(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    view = (_view(job, rows),) if rows and any(part.is_host_bound for part in parts) else ()
    return Report("host", (Table.of("host", "Host", HostRow, rows),), view)


def _rows(trace: Trace) -> list[HostRow]:
    """Return the rows of one rank, longest first."""
    times, events, labels = self_times(trace), trace.events, phases(trace)
    groups = group([labels.phase_at(times.track, events.ts[times.rows]), events.name[times.rows]])
    num, self_ns = groups.sum(times.is_call.astype(np.int64)), groups.sum(times.ns)
    rows = [
        HostRow(trace.rank, labels.names[phase], events.strings[name], *sums)
        for (phase, name), *sums in zip(groups.keys.tolist(), num, self_ns, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.self_ns, row.phase, row.name))


def _is_host_bound(trace: Trace) -> bool:
    partition = activity(trace)
    bound_ns = int(partition.ns[partition.category == TimeCategory.HOST_BOUND].sum())
    return len(device_work(trace)) == 0 or bound_ns >= LARGE * int(partition.ns.sum())


def _view(job: Job, rows: Sequence[HostRow]) -> Table:
    """Return the longest self times, summed over ranks."""
    longest = largest_sums(rows, lambda row: (row.phase, row.name), lambda row: (row.num, row.self_ns))
    all_ns = sum(self_ns for _, (_, self_ns) in longest) or 1
    shown = [_Sum(*identity, num, ns, 100 * ns / all_ns) for identity, (num, ns) in longest[:_TOP]]
    title = sentences.HOST.format(of=over_ranks(job))
    return Table.of("host", title, _Sum, shown, note=more_rows(len(longest) - _TOP))
