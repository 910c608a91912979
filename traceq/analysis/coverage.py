"""Which device work has no launch, and how many events were dropped?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._wording import in_graphs
from traceq.claims.claim import Claim, Subject, measured
from traceq.claims.limits import LARGE
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.events.graph_replays import ReplayTimes, replay_times
from traceq.facts.events.unrecorded_work import missing_ops_share
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.unrecorded_share import lost_device_caveats, unrecorded_caveats, unrecorded_share
from traceq.facts.timeline.phases import BEFORE_WINDOW, UNATTRIBUTED, phases
from traceq.facts.timeline.time_partition import unrecorded
from traceq.frozen import frozen
from traceq.intervals import measure, sorted_unique
from traceq.model import Category, Caveat, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, name_ranks


@frozen
class CoverageRow:
    """What the report could not attribute or read."""

    num_gpu_events: int = column("GPU events", Unit.COUNT)
    unattributed_ns: int = column("no launch", Unit.NS)
    """Work without a launching call."""
    before_window_ns: int = column("launched before", Unit.NS)
    unrecorded_ns: int = column("unrecorded", Unit.NS)
    replay_ns: int = column("in graphs", Unit.NS)
    """Work that replays of CUDA graphs launched."""
    uncaptured_ns: int = column("capture unknown", Unit.NS)
    """Of `replay_ns`, capture unknown, and so ops."""
    dropped_events: int = column("dropped", Unit.COUNT)
    unread_counters: int = column("counters", Unit.COUNT)


@frozen
class _Rank:
    """One rank's row and caveats.

    `missing_ops` is the part of its ops that the trace lacks. `longest_call` is a call of the runtime and its ns, where
    the trace holds nothing else of a program.
    """

    row: CoverageRow
    caveats: tuple[Caveat, ...]
    unrecorded: float
    replays: ReplayTimes
    lacks_host_ops: bool
    missing_ops: float
    longest_call: tuple[str, int] | None


def summarize(trace: Trace) -> _Rank:
    """Return device work without a launch in the window, and dropped events."""
    unattributed_ns, before_window_ns = _sum_ns(trace, UNATTRIBUTED), _sum_ns(trace, BEFORE_WINDOW)
    replays = replay_times(trace)
    row = CoverageRow(
        num_gpu_events=len(device_work(trace)),
        unattributed_ns=unattributed_ns,
        before_window_ns=before_window_ns,
        unrecorded_ns=measure(unrecorded(trace)),
        replay_ns=replays.replay_ns,
        uncaptured_ns=replays.replay_ns - replays.captured_ns,
        dropped_events=trace.num_dropped,
        unread_counters=trace.num_counters,
    )
    return _Rank(
        row=row,
        caveats=tuple(_several_devices(trace)),
        unrecorded=unrecorded_share(trace),
        replays=replays,
        lacks_host_ops=lacks_host_ops(trace),
        missing_ops=missing_ops_share(trace),
        longest_call=_longest_call(trace),
    )


def _longest_call(trace: Trace) -> tuple[str, int] | None:
    events = trace.events
    calls = events.rows(Category.RUNTIME)
    if not len(calls) or len(device_work(trace)) or not lacks_host_ops(trace):
        return None
    longest = int(calls[np.argmax(events.dur[calls])])
    return events.text(longest), int(events.dur[longest])


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return sums over ranks."""
    names = [each.name for each in fields(CoverageRow)]
    total = CoverageRow(*(sum(getattr(part.row, name) for part in parts) for name in names))
    of_ranks = tuple(caveat for part in parts for caveat in part.caveats)
    caveats = (
        *lost_device_caveats(job.ranks),
        *_lost_host(job, parts),
        *of_ranks,
        *unrecorded_caveats(job.ranks, [part.unrecorded for part in parts]),
        *_lost_launches(*job.lost_launches),
        *_uncaptured([part.replays for part in parts]),
    )
    if total.unread_counters:
        caveats = (*caveats, Caveat("unread_counters", sentences.UNREAD_COUNTERS.format(num=total.unread_counters)))
    table = Table.of("coverage", "Coverage", CoverageRow, [total], single=True)
    shown = (total.unattributed_ns, total.unrecorded_ns, total.uncaptured_ns, total.dropped_events)
    view = table.without("unread_counters", *(() if total.replay_ns else ("replay_ns", "uncaptured_ns")))
    views = (view,) if any(shown) else ()  # `phases` has earlier work
    findings = (*_of_another_program(job), *_empty(job, parts), *_missing_ops(job, parts))
    return Report("coverage", (table,), views, findings, caveats)


def _lost_launches(lost: int, launches: int) -> Iterator[Caveat]:
    """Yield that the trace lacks much of the device's work: the profiler's buffers were full, or it stopped before."""
    if lost:
        yield Caveat("lost_launches", sentences.LOST_LAUNCHES.format(num=lost, launches=launches))


def _missing_ops(job: Job, parts: Sequence[_Rank]) -> Iterator[Claim]:
    """Yield that a trace is a sample, of the rank that lacks most of its ops, if any lacks ops everywhere."""
    shares = ((part.missing_ops, rank.rank) for part, rank in zip(parts, job.ranks, strict=True))
    share, rank = max(shares, default=(0.0, 0))
    if share:
        yield Claim("missing_ops", subject=Subject(rank=rank), measures=measured(missing_pct=100 * share))


def _lost_host(job: Job, parts: Sequence[_Rank]) -> list[Caveat]:
    """Return a caveat for ranks whose traces have launches, but nothing that tells what they are part of."""
    lacking = (
        part.lacks_host_ops and not rank.is_foreign and not rank.is_empty
        for rank, part in zip(job.ranks, parts, strict=True)
    )
    ranks = [rank.rank for rank, is_lacking in zip(job.ranks, lacking, strict=True) if is_lacking]
    if not ranks:
        return []
    where = "" if len(ranks) == len(job.ranks) else f"{name_ranks(ranks)}: "
    return [Caveat("no_host_ops", f"{where}{sentences.NO_HOST_OPS}")]


def _uncaptured(ranks: Sequence[ReplayTimes]) -> list[Caveat]:
    """Return a caveat if much of the device's time is in replays of graphs whose capture is unknown."""
    names = ("gpu_ns", "replay_ns", "captured_ns", "num")
    total = ReplayTimes(*(sum(getattr(rank, name) for rank in ranks) for name in names))
    uncaptured_ns = total.replay_ns - total.captured_ns
    if not uncaptured_ns or uncaptured_ns < LARGE * total.gpu_ns:
        return []
    return [Caveat("graph_replays", in_graphs(total).removesuffix("."))]


def _of_another_program(job: Job) -> Iterator[Claim]:
    """Yield a claim on traces of which no event is one of PyTorch's profiler."""
    ranks = [rank.rank for rank in job.ranks if rank.is_foreign]
    if ranks:
        yield Claim("foreign_trace", measures=measured(ranks=name_ranks(ranks) if len(ranks) < len(job.ranks) else ""))


def _empty(job: Job, parts: Sequence[_Rank]) -> Iterator[Claim]:
    """Yield a claim on recordings in which no program runs: no op, no annotation, no work of a device."""
    if not job.is_empty or job.is_foreign:
        return
    calls = [part.longest_call for part in parts if part.longest_call is not None]
    call, ns = max(calls, key=lambda call: call[1], default=("", 0))
    whole_ns = max(rank.extent[1] - rank.extent[0] for rank in job.ranks)
    yield Claim("empty_recording", measures=measured(call=call, call_ns=ns or None, whole_ns=whole_ns))


def _several_devices(trace: Trace) -> list[Caveat]:
    """Return a caveat for a process with several devices, which are analysed as one."""
    devices = sorted_unique(trace.events.device[device_work(trace).rows])
    if len(devices) < 2:
        return []
    return [Caveat("several_devices", sentences.SEVERAL_DEVICES.format(rank=trace.rank, num=len(devices)))]


def _sum_ns(trace: Trace, phase: str) -> int:
    """Return the summed durations of the device work of a phase."""
    work, labels = device_work(trace), phases(trace)
    return int((work.end - work.start)[labels.work_phase == labels.names.index(phase)].sum())
