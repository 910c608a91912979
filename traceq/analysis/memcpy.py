"""What is copied between host and device, and on the device?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import on_the_worst_rank, recurs, slack_by_rank, step_lengths
from traceq.analysis._rank_rows import Part, of_all, summed
from traceq.analysis._wording import over_ranks
from traceq.causes.removed_waits import copies_pageable_memory, saved_without_pageable_copies
from traceq.claims.claim import BY_REPLAY, Claim, Subject, measured
from traceq.claims.limits import NOTABLE
from traceq.facts.events.copies import OVER_LINK, copy_kind
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.peaks import peaks_of
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import measure_within, sorted_unique, span_index, spans
from traceq.model import Category, Trace
from traceq.report import Column, Report, Table, column
from traceq.units import Unit
from traceq.whatif.interventions import WithoutSyncs
from traceq.whatif.predict import is_replayed


@frozen
class CopyRow:
    """Copies of one kind."""

    rank: int = column("rank", Unit.COUNT, is_hidden=True)
    kind: str = column("copy")
    """`DtoH`, `HtoD`, `DtoD`, `PtoP`, ..."""
    memory: str = column("memory")
    """Of the host: `pageable`, `pinned`, or ""."""
    num: int = column("num", Unit.COUNT)
    bytes: int = column("bytes", Unit.BYTES)
    gpu_ns: int = column("GPU time", Unit.NS)
    under_kernels_ns: int = column("under kernels", Unit.NS)

    @property
    def gbps(self) -> float | None:
        """Bandwidth while the copies run, GB/s."""
        return self.bytes / self.gpu_ns if self.bytes and self.gpu_ns else None


def summarize(trace: Trace) -> Part[CopyRow]:
    """Return copies by kind over the whole trace, and the part of their time that kernels hide.

    A copy that no kernel hides costs its full time.
    """
    return Part(tuple(_rows(trace)), _pageable_copies(trace))


def merge(job: Job, parts: Sequence[Part[CopyRow]]) -> Report:
    """Return the rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    table = Table.of("memcpy", "Copies", CopyRow, rows)
    claims, change = (part.finding for part in parts), WithoutSyncs(is_pageable=True)
    findings = on_the_worst_rank(job, claims, slack_by_rank(job), change)
    return Report("memcpy", (table,), (_view(job, rows),) if rows else (), findings)


def _view(job: Job, rows: Sequence[CopyRow]) -> Table:
    """Return sums over ranks, the kind that takes most time first: with bandwidth, and the percentage kernels hide."""
    by_kind: dict[tuple[str, str], list[CopyRow]] = {}
    for row in rows:
        by_kind.setdefault((row.kind, row.memory), []).append(row)
    columns = ("num", "bytes", "gpu_ns", "under_kernels_ns")
    sums = sorted((summed(alike, *columns) for alike in by_kind.values()), key=lambda row: -row.gpu_ns)
    shares = (100 * row.under_kernels_ns / row.gpu_ns if row.gpu_ns else None for row in sums)
    view = Table.of("memcpy", f"Copies ({over_ranks(job)})", CopyRow, sums).visible
    view = view.with_column(Column("share", "overlap", Unit.PERCENT), shares)
    view = view.with_column(Column("gbps", "bandwidth", Unit.GBPS), (row.gbps for row in sums))
    limits = (_limit_gbps(row, sorted({rank.device for rank in job.ranks})) for row in sums)
    return view.with_column(Column("limit", "at most", Unit.GBPS), limits)


def _limit_gbps(row: CopyRow, devices: Sequence[str]) -> float | None:
    """Return what copies of a kind reach in practice where the device is known: over its link, or in its memory."""
    peaks = peaks_of(devices[0]) if len(devices) == 1 else None
    if peaks is None:
        return None
    within = peaks.bandwidth / 2 if row.kind == "DtoD" else 0.0  # each byte is read and written
    return (peaks.link if row.kind in OVER_LINK else within) / 1e9 or None


def _rows(trace: Trace) -> list[CopyRow]:
    work, events = device_work(trace), trace.events
    copies = np.flatnonzero(events.category[work.rows] == Category.MEMCPY)
    rows = work.rows[copies]
    names, inverse = unique_names(events, rows)
    of_name = [copy_kind(events.strings[name]) for name in names.tolist()]
    kinds = sorted(set(of_name))
    groups = group([np.array([kinds.index(kind) for kind in of_name], np.int64)[inverse]])
    sums = zip(
        groups.keys[:, 0].tolist(),
        groups.count(),
        groups.sum(np.maximum(events.bytes[rows], 0)),
        groups.sum((work.end - work.start)[copies]),
        groups.sum(_under_kernels(trace, copies)),
        strict=True,
    )
    return [
        CopyRow(trace.rank, kinds[kind].direction, kinds[kind].memory, num, size, ns, hidden_ns)
        for kind, num, size, ns, hidden_ns in sums
    ]


def _under_kernels(trace: Trace, copies: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[len(copies)] ns of each copy during which a kernel runs on its device; `copies` into DeviceWork."""
    work, events = device_work(trace), trace.events
    device, is_kernel = events.device[work.rows], events.category[work.rows] == Category.KERNEL
    hidden = np.zeros(len(copies), np.int64)
    for number in sorted_unique(device[copies]).tolist():
        selected, runs = device[copies] == number, is_kernel & (device == number)
        start, end = work.start[copies[selected]], work.end[copies[selected]]
        hidden[selected] = measure_within(spans(work.start[runs], work.end[runs]), start, end)
    return hidden


def _pageable_copies(trace: Trace) -> Claim | None:
    """Return the host's waits for pageable HtoD copies if a step without them would be 1 % shorter."""
    calls, trace_steps, pageable = blocking_calls(trace), steps(trace), copies_pageable_memory(trace)
    window = trace_steps.window[trace_steps.counted]
    inside = pageable & (span_index(trace_steps.host[trace_steps.counted], calls.start) >= 0)
    blocked_ns, step_ns = int((calls.end - calls.start)[inside].sum()) / len(window), float(np.diff(window).mean())
    if blocked_ns < NOTABLE * step_ns or not is_replayed(trace):
        return None
    saving = saved_without_pageable_copies(trace)
    in_step = span_index(trace_steps.host[trace_steps.counted], calls.start[inside])
    in_most = 2 * len(sorted_unique(in_step)) > len(window)
    if saving.least_ns < NOTABLE * step_ns or not in_most:
        return None
    if not recurs(saving.steps_ns, step_lengths(trace_steps), 100 * NOTABLE):
        return None
    origin, longest = syncs(trace).origin, int(np.argmax(np.where(inside, calls.end - calls.start, -1)))
    line, op = (origin.texts[int(texts[longest])] for texts in (origin.line, origin.op))
    measures, gain = measured(blocked_ns=round(blocked_ns)), (saving.least_ns, saving.most_ns)
    return Claim("pageable_copies", saving.least_ns, Subject(line=line, op=op), measures, gain, BY_REPLAY)
