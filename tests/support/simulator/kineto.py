"""A timeline as the profiler of torch would have written it, by the clock of its rank."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from builder import annotation, call, comms, frame, kernel, memcpy, op, read_text, row, text

from traceq.model import Run, Trace

from .machine import simulate
from .program import MAIN, RUNLOOP, Job
from .timeline import Call, Issue, Row, Timeline, Work

BASE_NS = 1_700_000_000_000_000_000
ORIGIN_NS = 5_000_000_000
WRITTEN = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}
DISPATCHED = {"all_reduce": "allreduce_", "all_gather": "_allgather_base_", "reduce_scatter": "_reduce_scatter_base_"}

Shown = tuple[int, int, dict[str, Any]]
"""Start and duration by the true clock, and the event."""


def run_of(job: Job, timelines: list[Timeline] | None = None, **options: Any) -> Run:
    """The job's traces as traceq reads them; `options` as for `trace_of`."""
    return Run("job", tuple(trace_of(job, timeline, **options) for timeline in timelines or simulate(job)))


def trace_of(job: Job, timeline: Timeline, **options: Any) -> Trace:
    return read_text(json_of(job, timeline, **options))


def json_of(
    job: Job,
    timeline: Timeline,
    *,
    stacks: bool = False,
    memory: bool = False,
    sync_rows: bool = False,
    numbered: bool = True,
    window: tuple[int, int] | None = None,
) -> bytes:
    """The trace; only what begins inside `window`, of the true clock, if there is one."""
    rank, offset = timeline.rank, job.offsets[timeline.rank] if job.offsets else 0
    base_ns = BASE_NS + rank * 1_234_567
    low, high = window or (-(2**62), 2**62)
    moved = ORIGIN_NS + offset - (base_ns - BASE_NS)
    shown = []
    for start, dur, event in _rows(job, timeline, stacks=stacks, sync_rows=sync_rows, numbered=numbered):
        if low <= start < high:
            shown.append(event | {"ts": _us(start + moved), "dur": _us(min(dur, high - start))})
    if memory:
        shown += [event | {"ts": _us(start + moved)} for start, event in _memory(timeline) if low <= start < high]
    world = {"backend": job.backend, "rank": rank, "world_size": job.num_ranks}
    metadata: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns}
    metadata |= {"distributedInfo": world} if job.num_ranks > 1 else {}
    return text(*shown, **metadata)


def _us(ns: int) -> Any:
    return Decimal(ns) / 1000


def _rows(job: Job, timeline: Timeline, *, stacks: bool, sync_rows: bool, numbered: bool) -> Iterator[Shown]:
    for number, (start, end) in enumerate(timeline.steps, job.first_step):
        yield start, end - start, annotation(f"ProfilerStep#{number}", 0, 0, tid=MAIN)
    for one in timeline.rows:
        if stacks or one.category not in ("line", "module"):
            yield one.start, one.end - one.start, _host_row(one)
    for made in timeline.calls:
        yield made.start, made.end - made.start, _call(made)
        if sync_rows and made.waits_on:
            yield made.start, made.end - made.start, _sync_row(made)
    for issue in timeline.issues:
        yield from _issued(job, issue, numbered=numbered)
    for work in timeline.works if job.backend != "gloo" else ():
        yield work.start, work.end - work.start, _device_row(work)


def _host_row(one: Row) -> dict[str, Any]:
    more = {"External id": one.external_id} if one.external_id else {}
    if one.category in ("op", "compile"):
        return op(one.name, 0, 0, tid=one.thread, **more)
    if one.category == "line":
        return frame(one.name, 0, 0, tid=one.thread)
    if one.category == "module":
        return frame(f"nn.Module: {one.name}", 0, 0, tid=one.thread)
    return annotation(one.name, 0, 0, tid=one.thread)


def _call(made: Call) -> dict[str, Any]:
    return call(made.name, 0, 0, made.correlation, tid=made.thread, **{"External id": made.external_id})


def _sync_row(made: Call) -> dict[str, Any]:
    assert made.waits_on
    kind, stream, record = made.waits_on
    args: dict[str, Any] = {"stream": stream if kind == "Stream Sync" else -1, "correlation": made.correlation}
    if kind == "Event Sync":
        args |= {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": record}
    return row("cuda_sync", kind, 0, 0, tid=args["stream"], device=0, **args)


def _device_row(work: Work) -> dict[str, Any]:
    if work.category == "memcpy":
        shown = memcpy(work.name.removeprefix("Memcpy "), 0, 0, work.call.correlation, work.stream, work.size)
    else:
        shown = kernel(work.name, 0, 0, work.call.correlation, work.stream)
    shown["args"]["External id"] = work.call.external_id
    return shown


def _issued(job: Job, issue: Issue, *, numbered: bool) -> Iterator[Shown]:
    what, work = issue.what, issue.work
    if job.backend == "gloo":
        shapes = {"Input Dims": [[what.elements]], "Input type": ["float"]}
        shown = "all_reduce" if what.name == "reduce_scatter" else what.name
        called = op(f"c10d::{DISPATCHED[what.name]}", 0, 0, tid=issue.thread, **shapes)
        yield issue.start, issue.end - issue.start, called
        yield work.start, work.end - work.start, annotation(f"gloo:{shown}", 0, 0, tid=RUNLOOP, **shapes)
        return
    more: dict[str, Any] = {"Group size": job.num_ranks, "Process Group Name": what.group}
    more |= {"Seq": issue.sequence} if numbered else {}
    more["External id"] = issue.external_id
    sides = (what.elements, what.elements)
    yield issue.start, issue.end - issue.start, comms(WRITTEN[what.name], 0, 0, sides, tid=issue.thread, **more)


def _memory(timeline: Timeline) -> Iterator[tuple[int, dict[str, Any]]]:
    for index, size, total in timeline.memory:
        args = {"Total Reserved": total, "Total Allocated": total, "Bytes": size, "Device Id": 0, "Device Type": 1}
        shown = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 40, "tid": MAIN}
        yield index, shown | {"args": args}
