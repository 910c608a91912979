"""How much memory does each phase need, and what is alive when most is in use?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analysis._basis import recurs
from traceq.analysis._job_gain import JobGain, gained_words, job_gain
from traceq.analysis._rank_rows import of_all
from traceq.analysis._slack import slack_by_rank
from traceq.analysis._wording import in_some_steps, per_step, replay_term, saving_words, scope
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.causes.removed_waits import saved_without_syncs
from traceq.causes.savings import Saving
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.one_time_syncs import is_in_graph_capture, returns_memory
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.stalls.uncached_allocations import uncached_allocations
from traceq.facts.timeline.allocations import MemoryUse, memory_use
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import sorted_unique, span_index
from traceq.model import Trace
from traceq.report import Finding, Report, Table, Unknown, column, found
from traceq.units import Unit, format_value
from traceq.whatif.host_waits import WithoutSyncs
from traceq.whatif.unreplayed import is_replayed

POSITION = 75

_LEAST_PCT = 0.1
"""Percentage of most steps that replay saves from which it is worth more than a remark."""

_UNSET = "unset PYTORCH_NO_CUDA_MEMORY_CACHING (on ROCm PYTORCH_NO_HIP_MEMORY_CACHING)"


@frozen
class MemoryRow:
    """Allocations of one phase on one device of one rank, over the whole trace."""

    rank: int = column("rank", Unit.COUNT, is_hidden=True)
    device: str = column("device", is_hidden=True)
    phase: str = column("phase")
    num: int = column("allocs, frees", Unit.COUNT)
    allocated_bytes: int = column("allocated", Unit.BYTES)
    freed_bytes: int = column("freed", Unit.BYTES)
    growth_bytes: int = column("growth", Unit.DELTA_BYTES)
    peak_bytes: int = column("peak", Unit.BYTES)


@frozen
class PeakRow:
    """The moment at which most memory of a device is in use; levels that are not absolute count from 0 at the start."""

    rank: int = column("rank", Unit.COUNT)
    device: str = column("device")
    absolute: bool = column("absolute")
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
    """One rank's phases and peaks on each device, and what is wrong with its calls of the driver."""

    rows: tuple[MemoryRow, ...]
    peaks: tuple[PeakRow, ...]
    driver_calls: _DriverCalls | None


@frozen
class _DriverCalls:
    """A finding on how steps allocate from the driver, in words, and what a step of `step_ns` saves.

    `saving` without any call of the allocator to the driver, None where that is not known; `recurs`: in most steps.
    """

    code: str
    what: str
    remedy: str
    step_ns: float
    saving: Saving | None
    recurs: bool


def summarize(trace: Trace) -> _Rank:
    """Return peak and growth of each phase, the peak's place, from `[memory]` rows, and allocator calls in steps."""
    uses = memory_use(trace)
    rows = tuple(row for use in uses for row in _rows(trace, use))
    return _Rank(rows, tuple(_peak(trace, use) for use in uses), _driver_calls(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see the device with the highest peak."""
    peaks = [peak for part in parts for peak in part.peaks]
    tables = (
        Table.of("memory", "Memory", MemoryRow, of_all(parts)),
        Table.of("memory_peaks", "Peaks", PeakRow, peaks),
    )
    has_calls = any(part.driver_calls for part in parts)
    gain = job_gain(job, WithoutSyncs(kind=SYNC_KINDS[SyncKind.ALLOC])) if has_calls else None
    of_ranks = [None if part.driver_calls is None else _finding(job, part.driver_calls, gain) for part in parts]
    findings = on_the_worst_rank(job, of_ranks, slack_by_rank(job), is_of_job=gain is not None)
    unknown = () if peaks or job.is_foreign else (Unknown("memory", "profile_memory=True"),)
    views = (_view(job, parts, peaks),) if peaks else ()
    return Report("memory", tables, views, findings, unknown=unknown)


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
    on_rank = f", rank {highest.rank}, the highest peak" if len(job.ranks) > 1 else ""
    title = f"Memory ({highest.device}{on_rank}, {scope(job)})"
    return Table.of("memory", title, MemoryRow, rows, note=_note(highest)).visible


def _note(peak: PeakRow) -> str:
    reserved = f" of {format_value(peak.reserved_bytes, Unit.BYTES)} reserved" if peak.reserved_bytes else ""
    line, op = f" at {peak.line}" if peak.line else "", f" ({peak.op})" if peak.op else ""
    levels = "" if peak.absolute else " Levels count from the start of the trace."
    return f"Peak {format_value(peak.peak_bytes, Unit.BYTES)}{reserved} in {peak.phase}{line}{op}.{levels}"


def _driver_calls(trace: Trace) -> _DriverCalls | None:
    """Return that the driver allocates every tensor, else that an allocator returns memory to it; None for neither."""
    if (what := _uncached(trace)) is not None:
        code, remedy = "uncached_allocations", _UNSET
    elif (what := _retries(trace)) is not None:
        code, remedy = "allocator_retries", "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use less memory"
    else:
        return None
    saving = saved_without_syncs(trace, SyncKind.ALLOC) if is_replayed(trace) else None
    does_recur = saving is not None and recurs(saving.steps_ns, steps(trace), _LEAST_PCT)
    step_ns = float(np.diff(steps(trace).window[steps(trace).counted]).mean())
    return _DriverCalls(code, what, remedy, step_ns, saving, does_recur)


def _uncached(trace: Trace) -> str | None:
    """Return how often the driver allocates and frees, as it does for every tensor; None where it does not."""
    if (uncached := uncached_allocations(trace)) is None:
        return None
    trace_steps = steps(trace)
    numbers = (uncached.num_allocated, uncached.num_freed, uncached.num_launches)
    allocates, frees, launches = (format_value(each / int(trace_steps.counted.sum()), Unit.MEAN) for each in numbers)
    return (
        f"the driver allocates every tensor, as without a caching allocator: {allocates} allocations and {frees} frees "
        f"beside {launches} launches {per_step(trace_steps)}"
    )


def _retries(trace: Trace) -> str | None:
    """Return how often an allocator frees memory to the driver within steps, but for the capture of a graph."""
    waits, trace_steps = syncs(trace), steps(trace)
    if not trace_steps.marked:
        return None
    host, num_steps = trace_steps.host[trace_steps.counted], int(trace_steps.counted.sum())
    recurring = returns_memory(trace) & ~is_in_graph_capture(trace)
    frees_memory = np.flatnonzero(recurring & (span_index(host, waits.start) >= 0))
    num_frees = len(frees_memory)
    if not num_frees:
        return None
    with_one = len(sorted_unique(span_index(host, waits.start[frees_memory])))
    frees = format_value(num_frees / num_steps, Unit.MEAN)
    often = f"{frees} times {per_step(trace_steps)}{in_some_steps(with_one, num_steps)}"
    return f"the allocator returns memory to the driver {often}"


def _finding(job: Job, calls: _DriverCalls, gain: JobGain | None) -> Finding:
    """Return the finding on a rank's calls; its time is what the rank saves without any call to the driver.

    `gain`: what all ranks do, None where that is not known.
    """
    saves, saving = "", calls.saving
    if saving is not None:
        saved = gained_words(saving_words(saving, calls.step_ns), gain)
        saves = f"; removing all allocation calls saves {saved} ({replay_term(job)})"
    saved_ns = saving.least_ns if saving else 0
    is_gain = saved_ns > 0 and calls.recurs and not (gain and gain.is_nothing)
    return found(
        calls.code,
        "high" if is_gain else "low",
        f"{calls.what}{saves}: {calls.remedy}",
        saved_ns,
        lead=f"{calls.what.partition(':')[0].partition(',')[0]}: {calls.remedy}",
        evidence=calls.what.partition(": ")[2],
        gain=_gain(calls, gain),
    )


def _gain(calls: _DriverCalls, gain: JobGain | None) -> tuple[int, int] | None:
    """Return what the job gains without the calls, in ns; None where that is not known."""
    if gain is not None:
        return gain.saved_ns
    if calls.saving is None:
        return None
    return (calls.saving.least_ns, calls.saving.most_ns) if calls.recurs else (0, 0)
