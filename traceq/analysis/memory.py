"""How much memory does each phase need, and what is alive when most is in use?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis._parts import of_all
from traceq.analysis._wording import scope
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.events.name_patterns import matching
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.allocations import MemoryUse, memory_use
from traceq.facts.timeline.blocking_calls import SyncKind
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.report import Column, Finding, Report, Table, Unknown
from traceq.units import Unit, format_value

POSITION = 75

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("device", "device"),
    Column("phase", "phase"),
    Column("num", "allocs, frees", Unit.COUNT),
    Column("allocated_bytes", "allocated", Unit.BYTES),
    Column("freed_bytes", "freed", Unit.BYTES),
    Column("growth_bytes", "growth", Unit.DELTA_BYTES),
    Column("peak_bytes", "peak", Unit.BYTES),
)
_PEAK_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("device", "device"),
    Column("absolute", "absolute"),
    Column("start_bytes", "at the start", Unit.BYTES),
    Column("end_bytes", "at the end", Unit.BYTES),
    Column("peak_bytes", "peak", Unit.BYTES),
    Column("reserved_bytes", "reserved then", Unit.BYTES),
    Column("step", "step"),
    Column("phase", "phase"),
    Column("op", "op"),
    Column("line", "line"),
)

_FREES = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")

_Row = tuple[int, str, str, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Peak:
    """The moment at which most memory of a device is in use."""

    rank: int
    device: str
    absolute: bool
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    reserved_bytes: int | None
    step: str
    phase: str
    op: str
    line: str


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's phases and peaks, of each device, and what its allocator gave back."""

    rows: tuple[_Row, ...]
    peaks: tuple[_Peak, ...]
    finding: Finding | None


def summarize(trace: Trace) -> _Rank:
    """Peak and growth of each phase, and where the peak is, from `[memory]` rows; calls of the allocator in steps."""
    uses = memory_use(trace)
    rows = tuple(row for use in uses for row in _rows(trace, use))
    return _Rank(rows, tuple(_peak(trace, use) for use in uses), _retries(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see the fullest device."""
    peaks = [peak for part in parts for peak in part.peaks]
    tables = (
        Table("memory", "Memory", _COLUMNS, of_all(parts)),
        Table("memory_peaks", "Peaks", _PEAK_COLUMNS, tuple(_cells(peak) for peak in peaks)),
    )
    found = on_the_worst_rank(job, (part.finding for part in parts))
    unknown = () if peaks else (Unknown("memory", "profile_memory=True"),)
    views = (_view(job, parts, peaks),) if peaks else ()
    return Report("memory", tables, views, found, unknown=unknown)


def _cells(peak: _Peak) -> tuple[str | int | bool | None, ...]:
    return tuple(getattr(peak, column.key) for column in _PEAK_COLUMNS)


def _rows(trace: Trace, use: MemoryUse) -> list[_Row]:
    """Growth of the phases adds up to what the device's level grew by."""
    groups, names = group([use.phase]), phases(trace).names
    allocated, freed = groups.sum(np.maximum(use.change, 0)), groups.sum(np.maximum(-use.change, 0))
    growth, peak = groups.sum(use.change), np.full(len(groups.keys), np.iinfo(np.int64).min)
    np.maximum.at(peak, groups.of_row, use.reach)
    return [
        (trace.rank, use.name, names[phase], *numbers)
        for (phase,), *numbers in zip(
            groups.keys.tolist(), groups.count(), allocated, freed, growth, peak.tolist(), strict=True
        )
    ]


def _peak(trace: Trace, use: MemoryUse) -> _Peak:
    at = int(np.argmax(use.reach))
    if use.level[at] < use.reach[at] and at > 0:
        at -= 1  # a free: what made the peak came before
    found, host = steps(trace), steps(trace).host
    step = int(span_index(host, use.ts[at : at + 1])[0]) if found.marked else -1
    origin = origins(trace, use.track[at : at + 1], use.ts[at : at + 1], use.ts[at : at + 1])
    reserved = int(use.reserved[at])
    return _Peak(
        rank=trace.rank,
        device=use.name,
        absolute=use.is_absolute,
        start_bytes=int(use.level[0] - use.change[0]),
        end_bytes=int(use.level[-1]),
        peak_bytes=int(use.reach.max()),
        reserved_bytes=reserved if reserved >= 0 else None,
        step=found.names[step] if step >= 0 else "",
        phase=phases(trace).names[int(use.phase[at])],
        op=origin.texts[int(origin.op[0])],
        line=origin.texts[int(origin.line[0])],
    )


def _view(job: Job, parts: Sequence[_Rank], peaks: Sequence[_Peak]) -> Table:
    """Phases of the device with the highest peak; of the CPU only where no other device is told of."""
    fullest = max(peaks, key=lambda peak: (peak.device != "cpu", peak.peak_bytes))
    mine = [row[2:] for row in of_all(parts) if row[:2] == (fullest.rank, fullest.device)]
    on = f", rank {fullest.rank}, the fullest" if len(job.ranks) > 1 else ""
    of = f" of {format_value(fullest.reserved_bytes, Unit.BYTES)} reserved" if fullest.reserved_bytes else ""
    where = f" at {fullest.line}" * bool(fullest.line) + f" ({fullest.op})" * bool(fullest.op)
    note = f"Peak {format_value(fullest.peak_bytes, Unit.BYTES)}{of} in {fullest.phase}{where}."
    if not fullest.absolute:
        note += " Levels count from the start of the trace."
    return Table("memory", f"Memory ({fullest.device}{on}, {scope(job)})", _COLUMNS[2:], tuple(mine), note=note)


def _retries(trace: Trace) -> Finding | None:
    """Memory that the allocator gave back to the driver within a step: it had to, to get some elsewhere."""
    found, known = syncs(trace), steps(trace)
    if not known.marked:
        return None
    host, num_steps = known.host[known.counted], int(known.counted.sum())
    mine = np.flatnonzero((found.kind == SyncKind.ALLOC) & (span_index(host, found.start) >= 0))
    num_frees = int(matching(trace.events, found.rows[mine], _FREES).sum())
    cost_ns = round(int(found.cost[mine].sum()) / num_steps)
    if not num_frees:
        return None
    each = format_value(num_frees / num_steps, Unit.MEAN)
    text = (
        f"the allocator returns memory to the driver {each} times a step; in its calls the device idles "
        f"{format_value(cost_ns, Unit.NS)} a step: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or less memory"
    )
    return Finding("allocator_retries", "high", text, cost_ns, instead_of=("alloc_wait",))
