"""How much memory does each phase need, and what is alive when most is in use?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import on_the_worst_rank, recurs, slack_by_rank, step_lengths
from traceq.analysis._rank_rows import of_all
from traceq.analysis._wording import scope
from traceq.causes.removed_waits import saved_without_syncs
from traceq.claims.claim import BY_REPLAY, Basis, Claim, Measure, Subject, in_some_steps, measured
from traceq.claims.limits import LARGE, MOST, NOTHING
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.syncs import SYNC_KINDS, is_in_graph_capture, returns_memory, syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import sorted_unique, span_index
from traceq.model import KEPT_BYTES, KEPT_LINE, MEMORY_AFTER, MEMORY_BEFORE, Trace, memory_growth
from traceq.report import Report, Table, Unknown, column
from traceq.units import Unit, format_value
from traceq.whatif.interventions import WithoutSyncs
from traceq.whatif.predict import is_replayed

_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 20: "privateuse"}
"""torch's DeviceType, as `[memory]` rows write it."""


@frozen
class MemoryRow:
    """Allocations of one phase on one device."""

    rank: int = column("rank", Unit.COUNT, is_hidden=True)
    device: str = column("device", is_hidden=True)
    phase: str = column("phase")
    num: int = column("allocs, frees", Unit.COUNT)
    """Allocations."""
    allocated_bytes: int = column("allocated", Unit.BYTES)
    freed_bytes: int = column("freed", Unit.BYTES)
    growth_bytes: int = column("growth", Unit.DELTA_BYTES)
    peak_bytes: int = column("peak", Unit.BYTES)
    """Highest level at an allocation or free."""


@frozen
class PeakRow:
    """When most memory of a device is in use."""

    rank: int = column("rank", Unit.COUNT)
    device: str = column("device")
    absolute: bool = column("absolute")
    """Else levels count from the start of the trace."""
    start_bytes: int = column("at the start", Unit.BYTES)
    end_bytes: int = column("at the end", Unit.BYTES)
    peak_bytes: int = column("peak", Unit.BYTES)
    reserved_bytes: int | None = column("reserved at the peak", Unit.BYTES)
    step: str = column("step")
    phase: str = column("phase")
    op: str = column("op")
    line: str = column("line")


@frozen
class _Rank:
    """One rank's phases and peaks on each device, and the claim on its calls of the driver.

    `is_asked`: the profiler was to record memory, and found none.
    """

    rows: tuple[MemoryRow, ...]
    peaks: tuple[PeakRow, ...]
    driver_calls: Claim | None
    is_asked: bool


def summarize(trace: Trace) -> _Rank:
    """Return peak and growth of each phase, the peak's place, from `[memory]` rows, and allocator calls in steps."""
    uses = memory_use(trace)
    rows = tuple(row for use in uses for row in _rows(trace, use))
    is_asked = ("profiler's profile_memory", "yes") in trace.versions
    return _Rank(rows, tuple(_peak(trace, use) for use in uses), _driver_calls(trace), is_asked)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see the device with the highest peak."""
    peaks = [peak for part in parts for peak in part.peaks]
    tables = (
        Table.of("memory", "Memory", MemoryRow, of_all(parts)),
        Table.of("memory_peaks", "Peaks", PeakRow, peaks),
    )
    claims, change = (part.driver_calls for part in parts), WithoutSyncs(kind=SYNC_KINDS[SyncKind.ALLOC])
    findings = (*_growth(job), *on_the_worst_rank(job, claims, slack_by_rank(job), change))
    is_known = bool(peaks) or job.is_foreign or any(part.is_asked for part in parts)
    unknown = () if is_known else (Unknown("memory", "profile_memory=True"),)
    views = (_view(job, parts, peaks),) if peaks else ()
    return Report("memory", tables, views, findings, unknown=unknown)


def _growth(job: Job) -> Iterator[Claim]:
    """Yield that memory grows in unprofiled steps, all of one arm, by what a traced step with stacks leaves behind."""
    if job.timings is None or job.manifest is None or len(job.manifest.arms) > 1:
        return
    facts, num_steps = job.manifest.facts_for(job.arm), job.timings.step_ns.shape[1]
    before, after, kept = (int(facts.get(key, 0)) for key in (MEMORY_BEFORE, MEMORY_AFTER, KEPT_BYTES))
    if memory_growth(facts) > LARGE and 0 < MOST * kept * num_steps <= after - before:
        measures = measured(step_bytes=kept, before_bytes=before, after_bytes=after, num_steps=num_steps)
        subject = Subject(rank=0 if len(job.ranks) > 1 else None, line=str(facts.get(KEPT_LINE, "")))
        yield Claim("memory_growth", 0, subject, measures, basis=Basis(num_steps, is_unprofiled=True))


def _rows(trace: Trace, use: MemoryUse) -> list[MemoryRow]:
    """Return one row per phase; their growth adds up to that of the device's level."""
    groups, names = group([use.phase]), phases(trace).names
    allocated, freed = groups.sum(np.maximum(use.change, 0)), groups.sum(np.maximum(-use.change, 0))
    peak = np.full(len(groups.keys), np.iinfo(np.int64).min)
    np.maximum.at(peak, groups.group_ids, use.peak_level)
    phase_numbers, growth = groups.keys[:, 0].tolist(), groups.sum(use.change)
    columns = zip(phase_numbers, groups.count(), allocated, freed, growth, peak.tolist(), strict=True)
    return [MemoryRow(trace.rank, use.name, names[phase], *numbers) for phase, *numbers in columns]


def _peak(trace: Trace, use: MemoryUse) -> PeakRow:
    index = int(np.argmax(use.peak_level))
    if use.level[index] < use.peak_level[index] and index > 0:
        index -= 1  # a free: what made the peak came before
    time_ns, track = use.ts[index : index + 1], use.track[index : index + 1]
    trace_steps, origin = steps(trace), origins(trace, track, time_ns, time_ns)
    step = int(span_index(trace_steps.host, time_ns)[0]) if trace_steps.marked else -1
    reserved = int(use.reserved[index])
    return PeakRow(
        rank=trace.rank,
        device=use.name,
        absolute=use.is_absolute,
        start_bytes=int(use.level[0]) - int(use.change[0]),
        end_bytes=int(use.level[-1]),
        peak_bytes=int(use.peak_level.max()),
        reserved_bytes=reserved if reserved >= 0 else None,
        step=trace_steps.names[step] if step >= 0 else "",
        phase=phases(trace).names[int(use.phase[index])],
        op=origin.texts[int(origin.op[0])],
        line=origin.texts[int(origin.line[0])],
    )


def _view(job: Job, parts: Sequence[_Rank], peaks: Sequence[PeakRow]) -> Table:
    """Phases of the device with the highest peak; of the CPU only where the traces have no other device."""
    highest = max(peaks, key=lambda peak: (peak.device != "cpu", peak.peak_bytes))
    rows = [row for row in of_all(parts) if (row.rank, row.device) == (highest.rank, highest.device)]
    on_rank = sentences.HIGHEST_PEAK.format(rank=highest.rank) if len(job.ranks) > 1 else ""
    title = sentences.MEMORY.format(device=highest.device, on_rank=on_rank, of=scope(job))
    return Table.of("memory", title, MemoryRow, rows, note=_note(highest)).visible


def _note(peak: PeakRow) -> str:
    reserved = f" of {format_value(peak.reserved_bytes, Unit.BYTES)} reserved" if peak.reserved_bytes else ""
    line, op = f" at {peak.line}" if peak.line else "", f" ({peak.op})" if peak.op else ""
    size = format_value(peak.peak_bytes, Unit.BYTES)
    note = sentences.PEAK.format(bytes=size, reserved=reserved, phase=peak.phase, line=line, op=op)
    return note if peak.absolute else f"{note} {sentences.LEVELS}"


def _driver_calls(trace: Trace) -> Claim | None:
    """Return that an allocator returns memory to the driver within steps, and asks for it again.

    Its time is what the rank saves without any call of the allocator to the driver.
    """
    if not (measures := _retries(trace)):
        return None
    claim = Claim("allocator_retries", measures=measures, remedy="expandable_segments")
    if not is_replayed(trace):
        return claim
    saving = saved_without_syncs(trace, SyncKind.ALLOC)
    gain = (
        (saving.least_ns, saving.most_ns)
        if recurs(saving.steps_ns, step_lengths(steps(trace)), 100 * NOTHING)
        else (0, 0)
    )
    return replace(claim, ns=saving.least_ns, gain=gain, gain_by=BY_REPLAY)


def _retries(trace: Trace) -> dict[str, Measure]:
    """Return how often an allocator frees memory to the driver within steps, but for the capture of a graph."""
    waits, trace_steps = syncs(trace), steps(trace)
    if not trace_steps.marked:
        return {}
    host = trace_steps.host[trace_steps.counted]
    of_frees = span_index(host, waits.start[returns_memory(trace) & ~is_in_graph_capture(trace)])
    of_frees = of_frees[of_frees >= 0]
    if not len(of_frees):
        return {}
    return measured(num_frees=len(of_frees), **in_some_steps(len(sorted_unique(of_frees)), len(host)))


@frozen(eq=False)
class MemoryUse:
    """M allocations and frees of one device, sorted by time.

    `name` like `cuda:0`; `ts`, `track`, `phase` int64[M] of the host; `change`, `level` int64[M] bytes, the level after
    each change; `reserved` int64[M] bytes held by the allocator, -1 if it is not recorded. If the trace records no
    levels (2021) they count from its start, and `is_absolute` is False.
    """

    name: str
    ts: NDArray[np.int64]
    track: NDArray[np.int64]
    phase: NDArray[np.int64]
    change: NDArray[np.int64]
    level: NDArray[np.int64]
    reserved: NDArray[np.int64]
    is_absolute: bool

    @property
    def peak_level(self) -> NDArray[np.int64]:
        """int64[M] bytes: the higher of the levels before and after each change."""
        return np.asarray(np.maximum(self.level, self.level - self.change))

    @property
    def is_host(self) -> bool:
        """Whether this is the memory of the CPU."""
        return self.name.startswith("cpu")


@once_per_trace
def memory_use(trace: Trace) -> tuple[MemoryUse, ...]:
    """Return the memory of each device that the trace records; accelerators come first."""
    allocations = trace.events.allocations
    devices = np.column_stack([allocations.device_type, allocations.device])
    keys, device_index = np.unique(devices, axis=0, return_inverse=True)
    order = np.argsort(allocations.ts, kind="stable")
    device_index = device_index.reshape(-1)[order]
    uses = [
        _use_of_device(trace, _name(device_type, device), order[device_index == index])
        for index, (device_type, device) in enumerate(keys.tolist())
    ]
    return tuple(sorted(uses, key=lambda use: (use.is_host, use.name)))


def _use_of_device(trace: Trace, name: str, rows: NDArray[np.int64]) -> MemoryUse:
    allocations = trace.events.allocations
    track = allocations.pid[rows].astype(np.int64) * len(trace.events.strings) + allocations.tid[rows]
    ts, change, level = allocations.ts[rows], allocations.bytes[rows], allocations.allocated[rows]
    reserved = allocations.reserved[rows]
    is_absolute = bool((level != -1).any())
    return MemoryUse(
        name=name,
        ts=ts,
        track=track,
        phase=phases(trace).phase_at(track, ts),
        change=change,
        level=level if is_absolute else np.cumsum(change),
        reserved=np.where(reserved > 0, reserved, -1),
        is_absolute=is_absolute,
    )


def _name(device_type: int, device: int) -> str:
    kind = _DEVICE_TYPES.get(device_type, f"device {device_type}")
    return kind if device < 0 else f"{kind}:{device}"
