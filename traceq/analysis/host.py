"""Which ops keep the host busy?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis._parts import of_all
from traceq.analysis._wording import more_rows, over_ranks
from traceq.facts.events.device_work import device_work
from traceq.facts.events.self_time import self_times
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Column, Report, Table
from traceq.units import Unit

POSITION = 78

_TOP = 5
_TELLING = 0.1
"""Share of the trace in which the device must wait for its host before people are shown what the host does."""

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("phase", "phase"),
    Column("name", "op or call"),
    Column("num", "num", Unit.COUNT),
    Column("self_ns", "self time", Unit.NS),
)

_Row = tuple[int, str, str, int, int]


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows; `waits`: its device waits for the host long enough to tell people."""

    rows: tuple[_Row, ...]
    waits: bool


def summarize(trace: Trace) -> _Rank:
    """Self time of ops and runtime calls by phase and name, over all threads and the whole trace, longest first."""
    return _Rank(tuple(_rows(trace)), _waits_for_host(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    view = (_view(job, rows),) if rows and any(part.waits for part in parts) else ()
    return Report("host", (Table("host", "Host", _COLUMNS, rows),), view)


def _rows(trace: Trace) -> list[_Row]:
    found, events, known = self_times(trace), trace.events, phases(trace)
    groups = group([known.on(found.track, events.ts[found.rows]), events.name[found.rows]])
    num, self_ns = groups.count(), groups.sum(found.ns)
    return [
        (trace.rank, known.names[groups.keys[at, 0]], events.strings[groups.keys[at, 1]], num[at], self_ns[at])
        for at in np.argsort(-np.array(self_ns, np.int64), kind="stable").tolist()
    ]


def _waits_for_host(trace: Trace) -> bool:
    done = activity(trace)
    bound = int(done.ns[done.doing == TimeCategory.HOST_BOUND].sum())
    return len(device_work(trace)) == 0 or bound >= _TELLING * int(done.ns.sum())


def _view(job: Job, rows: Sequence[_Row]) -> Table:
    sums: dict[tuple[str, str], list[int]] = {}
    for _, phase, name, num, self_ns in rows:
        total = sums.setdefault((phase, name), [0, 0])
        total[0] += num
        total[1] += self_ns
    longest = sorted(sums.items(), key=lambda item: -item[1][1])
    everything = sum(self_ns for _, self_ns in sums.values()) or 1
    shown = tuple((p, name, num, ns, 100 * ns / everything) for (p, name), (num, ns) in longest[:_TOP])
    columns = (*_COLUMNS[1:], Column("share", "share", Unit.PERCENT))
    rest = more_rows(len(longest) - _TOP)
    return Table("host", f"Host ops by self time ({over_ranks(job)})", columns, shown, note=rest)
