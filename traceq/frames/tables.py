"""The tables of a run: what is in each, docs/query.md says. Times are those of the trace, ns; several ranks below each
other, `rank` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.facts.comm.collectives import COLLECTIVE_NAMES as COLLECTIVES
from traceq.facts.comm.collectives import collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, is_communication
from traceq.frames.frame import ColumnValues, Frame, Texts, stacked
from traceq.intervals import span_index
from traceq.model import Category, Run, Trace

__all__ = ["NAMES", "frame", "frames"]

_Columns = dict[str, ColumnValues]
_CATEGORIES = tuple(category.name.lower() for category in Category)
_DOING = tuple(doing.name.lower() for doing in TimeCategory)


def frames(run: Run) -> tuple[Frame, ...]:
    """All tables of a run."""
    return tuple(frame(run, name) for name in NAMES)


def frame(run: Run, name: str) -> Frame:
    """One table of a run. Raises UsageFault for a name that is none, or a run without a trace."""
    if name not in _TABLES:
        raise UsageFault(f"no table '{name}'; choose from {', '.join(NAMES)}")
    if not run.traces:
        raise UsageFault(f"{run.path}: nothing was traced, so there are no tables")
    return stacked([Frame(name, _with_rank(trace, _TABLES[name](trace))) for trace in run.traces])


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
        "phase": _phase(trace, phases(trace).of_work),
        "step": _step(trace, work.start),
        "launch_row": work.call,
    }


def _launches(trace: Trace) -> _Columns:
    work, events = device_work(trace), trace.events
    rows, first, num = np.unique(work.call[work.linked], return_index=True, return_counts=True)
    begins = work.start[work.linked][first]
    return {
        "row": rows,
        "name": Texts(events.name[rows].astype(np.int64), events.strings),
        "tid": Texts(events.tid[rows].astype(np.int64), events.strings),
        "start_ns": events.ts[rows],
        "dur_ns": events.dur[rows],
        "num_ops": num.astype(np.int64),
        "until_begun_ns": begins - events.ts[rows],
    }


def _syncs(trace: Trace) -> _Columns:
    found = syncs(trace)
    origin = {
        name: Texts(np.where(ids > 0, ids, -1), found.origin.texts)
        for name, ids in (("op", found.origin.op), ("line", found.origin.line), ("module", found.origin.module))
    }
    return {
        "row": found.rows,
        "kind": Texts(found.kind.astype(np.int64), SYNC_KINDS),
        **origin,
        "phase": _phase(trace, found.phase),
        "step": _step(trace, found.start),
        "start_ns": found.start,
        "blocked_ns": found.blocked,
        "wait_ns": found.wait,
        "starved_ns": found.starved,
        "cost_ns": found.cost,
        "bytes": found.bytes,
    }


def _collectives(trace: Trace) -> _Columns:
    """One row a call; its kernels' time is theirs together."""
    calls, kernels, work, events = collective_calls(trace), collective_kernels(trace), device_work(trace), trace.events
    called = kernels.call >= 0
    duration = (work.end - work.start)[kernels.work[called]]
    gpu_ns, num = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.int64)
    np.add.at(gpu_ns, kernels.call[called], duration)
    np.add.at(num, kernels.call[called], 1)
    messages = events.messages
    known = calls.message >= 0

    def told(column: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
        values = np.full(len(calls), -1)
        values[known] = column[calls.message[known]]
        return values

    return {
        "row": calls.rows,
        "name": Texts(calls.name, COLLECTIVES),
        "dtype": Texts(told(messages.dtype), events.strings),
        "group_name": Texts(told(messages.group), events.strings),
        "group_size": told(messages.group_size),
        "sequence": told(messages.sequence),
        "bytes": calls.size,
        "phase": _phase(trace, calls.phase),
        "step": _step(trace, events.ts[calls.rows]),
        "start_ns": events.ts[calls.rows],
        "dur_ns": events.dur[calls.rows],
        "num_kernels": num,
        "gpu_ns": gpu_ns,
    }


def _phases(trace: Trace) -> _Columns:
    found = phases(trace)
    parts = found.main.parts
    return {
        "name": _phase(trace, found.main.label),
        "step": _step(trace, parts[:, 0]),
        "start_ns": parts[:, 0],
        "dur_ns": parts[:, 1] - parts[:, 0],
    }


def _partition(trace: Trace) -> _Columns:
    done = activity(trace)
    return {
        "category": Texts(done.doing.astype(np.int64), _DOING),
        "phase": _phase(trace, done.phase),
        "step": _step(trace, done.parts[:, 0]),
        "start_ns": done.parts[:, 0],
        "dur_ns": done.ns,
    }


def _steps(trace: Trace) -> _Columns:
    found = steps(trace)
    return {
        "step": found.number,
        "start_ns": found.window[:, 0],
        "dur_ns": found.window[:, 1] - found.window[:, 0],
        "host_start_ns": found.host[:, 0],
        "host_dur_ns": found.host[:, 1] - found.host[:, 0],
        "partial": found.partial,
    }


def _phase(trace: Trace, numbers: NDArray[np.int64]) -> Texts:
    return Texts(numbers, phases(trace).names)


def _step(trace: Trace, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the step in whose window each instant lies, -1 outside."""
    found = steps(trace)
    inside = span_index(found.window, at)
    return np.where(inside >= 0, found.number[inside], -1)


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
