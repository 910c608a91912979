"""What does the report not know? Device work without a launch, and events that were dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import BEFORE_WINDOW, UNATTRIBUTED, phases
from traceq.intervals import sorted_unique
from traceq.model import Category, Caveat, Trace
from traceq.report import Column, Report, Table
from traceq.units import Unit

POSITION = 80

_COLUMNS = (
    Column("num_gpu_events", "GPU events", Unit.COUNT),
    Column("unattributed_ns", "no launch", Unit.NS),
    Column("before_window_ns", "launched before", Unit.NS),
    Column("dropped_events", "dropped", Unit.COUNT),
)


@dataclass(frozen=True, slots=True)
class _Rank:
    """The columns' values of one rank, and what it makes doubtful."""

    values: tuple[int, int, int, int]
    caveats: tuple[Caveat, ...]


def summarize(trace: Trace) -> _Rank:
    """The times are sums of device work."""
    strays = _sum_ns(trace, UNATTRIBUTED), _sum_ns(trace, BEFORE_WINDOW)
    caveats = (*_lost_device(trace), *_several_devices(trace))
    return _Rank((len(device_work(trace)), *strays, trace.num_dropped), caveats)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Sums over ranks."""
    row = tuple(sum(part.values[at] for part in parts) for at in range(len(_COLUMNS)))
    caveats = tuple(caveat for part in parts for caveat in part.caveats)
    table = Table("coverage", "Coverage", _COLUMNS, (row,), single=True)
    told = row[1] or row[3]  # what was launched before the window stands among the phases
    return Report("coverage", (table,), (table,) if told else (), caveats=caveats)


def _lost_device(trace: Trace) -> list[Caveat]:
    """A trace cut short before its device rows looks like one of a CPU."""
    launches = trace.events.correlation[trace.events.rows(Category.RUNTIME)] > 0
    if len(device_work(trace)) or not launches.any():
        return []
    text = (
        f"rank {trace.rank}: {int(launches.sum()):,} calls to a device and no device work in the trace: read as a CPU's"
    )
    return [Caveat("no_device_work", text)]


def _several_devices(trace: Trace) -> list[Caveat]:
    """One process with several devices: they are looked at as one."""
    devices = sorted_unique(trace.events.device[device_work(trace).rows])
    if len(devices) < 2:
        return []
    text = f"rank {trace.rank}: work of {len(devices)} devices in one process; idle is when none of them runs"
    return [Caveat("several_devices", text)]


def _sum_ns(trace: Trace, phase: str) -> int:
    work, found = device_work(trace), phases(trace)
    mine = found.of_work == found.names.index(phase)
    return int((work.end - work.start)[mine].sum())
