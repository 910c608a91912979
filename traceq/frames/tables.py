"""Tables of a run; docs/query.md describes their columns.

Times are those of the trace, in ns. The rows of several ranks follow each other, with the rank in column `rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.entry_points import import_or_fault
from traceq.errors import UsageFault
from traceq.facts.comm.collectives import COLLECTIVE_NAMES as COLLECTIVES
from traceq.facts.comm.collectives import collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import step_of_work, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import span_index
from traceq.model import Category, Run, Trace


@frozen(eq=False)
class Texts:
    """Column of texts: `ids` int64[N] into `entries`; below 0 = no text."""

    ids: NDArray[np.int64]
    entries: Sequence[str]

    @property
    def values(self) -> NDArray[np.object_]:
        """Texts as object[N], None where there is none."""
        entries = np.array([*self.entries, None], object)
        texts: NDArray[np.object_] = entries[np.where(self.ids < 0, len(self.entries), self.ids)]
        return texts


ColumnValues = NDArray[np.int64] | NDArray[np.bool_] | Texts


@frozen(eq=False)
class Frame:
    """Table of a run; -1 = absent in columns of numbers."""

    name: str
    columns: Mapping[str, ColumnValues]

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return arrays by column name; texts as objects."""
        return {name: column.values if isinstance(column, Texts) else column for name, column in self.columns.items()}

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table. Raises TraceqError without pyarrow.

        Texts are dictionary-encoded: a name that occurs a million times is stored once.
        """
        arrow = import_or_fault("pyarrow")

        def array(column: ColumnValues) -> Any:
            if not isinstance(column, Texts):
                return arrow.array(column)
            ids = arrow.array(column.ids.astype(np.int32), mask=column.ids < 0)
            return arrow.DictionaryArray.from_arrays(ids, arrow.array(list(column.entries), arrow.string()))

        return arrow.table({name: array(column) for name, column in self.columns.items()})

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raises TraceqError without pandas."""
        return import_or_fault("pandas").DataFrame(self.to_numpy())

    def to_polars(self) -> Any:
        """Return a polars.DataFrame. Raises TraceqError without polars."""
        return import_or_fault("polars").DataFrame(self.to_numpy())


def concat_ranks(ranks: Iterable[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """Return the tables of all ranks, each of which has the same ones."""
    return tuple(map(concat_frames, zip(*ranks, strict=True)))


def concat_frames(frames: Sequence[Frame]) -> Frame:
    """Return the rows of tables with the same columns as one table."""
    first = frames[0]
    return Frame(
        first.name, {name: _concat_columns([frame.columns[name] for frame in frames]) for name in first.columns}
    )


def _concat_columns(parts: Sequence[ColumnValues]) -> ColumnValues:
    texts = [part for part in parts if isinstance(part, Texts)]
    if not texts:
        numbers: NDArray[np.int64] = np.concatenate([part for part in parts if not isinstance(part, Texts)])
        return numbers
    shifts = np.cumsum([0, *(len(part.entries) for part in texts)])
    ids = [np.where(part.ids < 0, -1, part.ids + shift) for part, shift in zip(texts, shifts.tolist(), strict=False)]
    return Texts(np.concatenate(ids), [text for part in texts for text in part.entries])


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
