"""Tables of a run; docs/query.md describes their columns.

Times are those of the trace, in ns. The rows of several ranks follow each other, with the rank in column `rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.facts.comm.collectives import COLLECTIVE_NAMES as COLLECTIVES
from traceq.facts.comm.collectives import collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import step_of_work, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frames.column_table import ColumnValues, Frame, Texts, concat_frames
from traceq.grouping import Numbers
from traceq.intervals import span_index
from traceq.model import Category, Run, Trace

_Columns = dict[str, ColumnValues]
_CATEGORIES = tuple(category.name.lower() for category in Category)
_TIME_CATEGORIES = tuple(category.name.lower() for category in TimeCategory)


def frames(run: Run) -> tuple[Frame, ...]:
    """Return all tables of a run. Raises UsageFault for a run without traces."""
    return tuple(frame(run, name) for name in NAMES)


def frame(run: Run, name: str) -> Frame:
    """Return one table of a run. Raises UsageFault for an unknown name or a run without traces."""
    if name not in _TABLES:
        raise UsageFault(f"no table '{name}'; choose from {', '.join(NAMES)}")
    if not run.traces:
        raise UsageFault(f"{run.path}: the run has no traces, so there are no tables")
    return concat_frames([frame for trace in run.traces for frame in rank_frames(trace, (name,))])


def rank_frames(trace: Trace, names: Sequence[str]) -> tuple[Frame, ...]:
    """Return some tables of one rank."""
    return tuple(Frame(name, _with_rank(trace, _TABLES[name](trace))) for name in names)


def _with_rank(trace: Trace, columns: _Columns) -> Mapping[str, ColumnValues]:
    first = next(iter(columns.values()))
    length = len(first.ids if isinstance(first, Texts) else first)
    return {"rank": np.full(length, trace.rank), **columns}


def _events(trace: Trace) -> _Columns:
    events = trace.events
    texts = {name: Texts(getattr(events, name).astype(np.int64), events.strings) for name in ("name", "cat")}
    numbers = ("device", "stream", "correlation", "external_id", "bytes")
    return {
        "row": np.arange(len(events)),
        **texts,
        "category": Texts(events.category.astype(np.int64), _CATEGORIES),
        "pid": Texts(events.pid.astype(np.int64), events.strings),
        "tid": Texts(events.tid.astype(np.int64), events.strings),
        "start_ns": events.ts,
        "dur_ns": events.dur,
        **{name: getattr(events, name).astype(np.int64) for name in numbers},
    }


def _device_ops(trace: Trace) -> _Columns:
    work, events = device_work(trace), trace.events
    return {
        "row": work.rows,
        "name": Texts(events.name[work.rows].astype(np.int64), events.strings),
        "category": Texts(events.category[work.rows].astype(np.int64), _CATEGORIES),
        "communicates": is_communication(trace),
        "device": events.device[work.rows].astype(np.int64),
        "stream": events.stream[work.rows].astype(np.int64),
        "start_ns": work.start,
        "dur_ns": work.end - work.start,
        "bytes": events.bytes[work.rows],
        "phase": _phase(trace, phases(trace).work_phase),
        "step": steps(trace).numbers(step_of_work(trace)),
        "launch_row": work.call,
    }


def _launches(trace: Trace) -> _Columns:
    work, events = device_work(trace), trace.events
    rows, first, num = np.unique(work.call[work.linked], return_index=True, return_counts=True)
    first_start = work.start[work.linked][first]
    return {
        "row": rows,
        "name": Texts(events.name[rows].astype(np.int64), events.strings),
        "tid": Texts(events.tid[rows].astype(np.int64), events.strings),
        "start_ns": events.ts[rows],
        "dur_ns": events.dur[rows],
        "num_ops": num.astype(np.int64),
        "until_begun_ns": first_start - events.ts[rows],
    }


def _syncs(trace: Trace) -> _Columns:
    calls = syncs(trace)
    origin = {
        name: Texts(np.where(ids > 0, ids, -1), calls.origin.texts)
        for name, ids in (("op", calls.origin.op), ("line", calls.origin.line), ("module", calls.origin.module))
    }
    return {
        "row": calls.rows,
        "kind": Texts(calls.kind.astype(np.int64), SYNC_KINDS),
        **origin,
        "phase": _phase(trace, calls.phase),
        "step": steps(trace).numbers(steps(trace).issued(calls.start)),
        "start_ns": calls.start,
        "blocked_ns": calls.blocked,
        "wait_ns": calls.wait,
        "starved_ns": calls.starved,
        "cost_ns": calls.cost,
        "bytes": calls.bytes,
    }


def _collectives(trace: Trace) -> _Columns:
    """Return one row per call; `gpu_ns` is the total duration of its kernels."""
    calls, kernels, work, events = collective_calls(trace), collective_kernels(trace), device_work(trace), trace.events
    has_call = kernels.call >= 0
    duration = (work.end - work.start)[kernels.work[has_call]]
    gpu_ns, num = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.int64)
    np.add.at(gpu_ns, kernels.call[has_call], duration)
    np.add.at(num, kernels.call[has_call], 1)
    messages = events.messages
    has_message = calls.message >= 0

    def of_message(column: Numbers) -> NDArray[np.int64]:
        values = np.full(len(calls), -1)
        values[has_message] = column[calls.message[has_message]]
        return values

    return {
        "row": calls.rows,
        "name": Texts(calls.name, COLLECTIVES),
        "dtype": Texts(of_message(messages.dtype), events.strings),
        "group_name": Texts(of_message(messages.group), events.strings),
        "group_size": of_message(messages.group_size),
        "sequence": of_message(messages.sequence),
        "bytes": calls.size,
        "phase": _phase(trace, calls.phase),
        "step": steps(trace).numbers(calls.step),
        "start_ns": events.ts[calls.rows],
        "dur_ns": events.dur[calls.rows],
        "num_kernels": num,
        "gpu_ns": gpu_ns,
    }


def _phases(trace: Trace) -> _Columns:
    main = phases(trace).main
    parts = main.parts
    return {
        "name": _phase(trace, main.label),
        "step": steps(trace).numbers(steps(trace).issued(parts[:, 0])),
        "start_ns": parts[:, 0],
        "dur_ns": parts[:, 1] - parts[:, 0],
    }


def _partition(trace: Trace) -> _Columns:
    pieces = activity(trace)
    return {
        "category": Texts(pieces.category.astype(np.int64), _TIME_CATEGORIES),
        "phase": _phase(trace, pieces.phase.astype(np.int64)),
        "step": steps(trace).numbers(span_index(steps(trace).window, pieces.parts[:, 0])),
        "start_ns": pieces.parts[:, 0],
        "dur_ns": pieces.ns,
    }


def _steps(trace: Trace) -> _Columns:
    marks = steps(trace)
    return {
        "step": marks.number,
        "start_ns": marks.window[:, 0],
        "dur_ns": marks.window[:, 1] - marks.window[:, 0],
        "host_start_ns": marks.host[:, 0],
        "host_dur_ns": marks.host[:, 1] - marks.host[:, 0],
        "partial": marks.partial,
    }


def _phase(trace: Trace, numbers: NDArray[np.int64]) -> Texts:
    return Texts(numbers, phases(trace).names)


_TABLES: Mapping[str, Callable[[Trace], _Columns]] = {
    "events": _events,
    "device_ops": _device_ops,
    "launches": _launches,
    "syncs": _syncs,
    "collectives": _collectives,
    "phases": _phases,
    "partition": _partition,
    "steps": _steps,
}

NAMES = tuple(_TABLES)
"""Names of the tables."""
