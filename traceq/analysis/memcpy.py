"""What is copied between host and device, and on the device?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._parts import Part, of_all
from traceq.analysis._wording import over_ranks, per_step, the_step
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching, names_of
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.dependency_graph import dependency_graph
from traceq.facts.stalls.replay import saved_a_step
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.blocking_calls import SyncKind, blocking_calls
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.intervals import measure_within, sorted_unique, span_index, spans
from traceq.model import Category, Trace
from traceq.report import Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 62

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("kind", "copy"),
    Column("num", "num", Unit.COUNT),
    Column("bytes", "bytes", Unit.BYTES),
    Column("gpu_ns", "GPU time", Unit.NS),
    Column("under_kernels_ns", "under kernels", Unit.NS),
)
_SHARE = Column("share", "of it", Unit.PERCENT)
_TELLING = 0.01
_PAGEABLE = re.compile("pageable", re.IGNORECASE)
_KIND = re.compile(r"^Memcpy (?P<kind>[A-Za-z]+to[A-Za-z]+)")

_Row = tuple[int, str, int, int, int, int]


def summarize(trace: Trace) -> Part[_Row]:
    """Copies by kind, over the whole trace, and how much of their time kernels run, too: a copy that none hides is
    paid in full.
    """
    return Part(tuple(_rows(trace)), _unpinned(trace))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    sums: dict[str, list[int]] = {}
    for _, kind, *values in rows:
        sums[kind] = [a + b for a, b in zip(sums.get(kind, [0, 0, 0, 0]), values, strict=True)]
    largest = sorted(sums.items(), key=lambda item: -item[1][2])
    shown = tuple((kind, *values, 100 * values[3] / values[2] if values[2] else None) for kind, values in largest)
    view = Table("memcpy", f"Copies ({over_ranks(job)})", (*_COLUMNS[1:], _SHARE), shown)
    found = on_the_worst_rank(job, (part.finding for part in parts))
    views = (view,) if rows else ()
    return Report("memcpy", (Table("memcpy", "Copies", _COLUMNS, rows),), views, found)


def _rows(trace: Trace) -> list[_Row]:
    work, events = device_work(trace), trace.events
    mine = np.flatnonzero(events.category[work.rows] == Category.MEMCPY)
    rows = work.rows[mine]
    kinds: dict[str, int] = {}
    names, inverse = names_of(events, rows)
    of_name = [kinds.setdefault(_kind(events.strings[name]), len(kinds)) for name in names.tolist()]
    groups = group([np.array(of_name, np.int64)[inverse]])
    label = list(kinds)
    values = (np.maximum(events.bytes[rows], 0), (work.end - work.start)[mine], _under_kernels(trace, mine))
    columns = zip(groups.keys.tolist(), groups.count(), *map(groups.sum, values), strict=True)
    return [(trace.rank, label[int(key)], *sums) for (key,), *sums in columns]


def _under_kernels(trace: Trace, copies: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[len(copies)] ns of each of some device work in which a kernel runs on the same device."""
    work, events = device_work(trace), trace.events
    device, is_kernel = events.device[work.rows], events.category[work.rows] == Category.KERNEL
    hidden = np.zeros(len(copies), np.int64)
    for number in sorted_unique(device[copies]).tolist():
        mine, runs = device[copies] == number, is_kernel & (device == number)
        start, end = work.start[copies[mine]], work.end[copies[mine]]
        hidden[mine] = measure_within(spans(work.start[runs], work.end[runs]), start, end)
    return hidden


def _unpinned(trace: Trace) -> Finding | None:
    """Copies from pageable memory for which the host waits, if a step without these waits would be 1 % shorter."""
    calls, known = blocking_calls(trace), steps(trace)
    copied = device_work(trace).rows[calls.copy]
    pageable = (calls.kind == SyncKind.HTOD) & (calls.copy >= 0) & matching(trace.events, copied, _PAGEABLE)
    window = known.window[known.counted]
    inside = pageable & (span_index(known.host[known.counted], calls.start) >= 0)
    blocked_ns, step_ns = int((calls.end - calls.start)[inside].sum()) / len(window), float(np.diff(window).mean())
    if blocked_ns < _TELLING * step_ns:
        return None
    removed = np.isin(dependency_graph(trace).holds.call, np.flatnonzero(pageable))
    saved_ns = int(saved_a_step(trace, removed[None])[0])
    if saved_ns < _TELLING * step_ns:
        return None
    blocked, saved = (format_value(ns, Unit.NS) for ns in (blocked_ns, saved_ns))
    origin, longest = syncs(trace).origin, int(np.argmax(np.where(inside, calls.end - calls.start, -1)))
    line = origin.texts[int(origin.line[longest])]
    at = f" ({line})" if line else ""
    text = (
        f"pageable HtoD copies{at} block the host {blocked} {per_step(known)}; without these waits {the_step(known)} "
        f"is {saved} shorter (replay): pin_memory=True and non_blocking=True, one batch ahead"
    )
    return Finding("pageable_copies", "medium", text, saved_ns, instead_of=("htod|",))


def _kind(name: str) -> str:
    """`Memcpy DtoH (Device -> Pinned)` is DtoH; memory kinds after the arrow differ between versions of torch."""
    found = _KIND.match(name)
    return found["kind"] if found else name
