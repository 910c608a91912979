"""Trace or run cut to one step: its host rows, and the device work launched in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.sentences import MARK_STEPS, NO_STEP, STEP_LACKS
from traceq.facts.timeline.steps import Steps, main_track, step_of_work, steps
from traceq.intervals import span_index
from traceq.model import SIDE_TABLES, Category, Caveat, Events, Flight, OneStep, Run, Trace, select_rows
from traceq.units import format_ranks, name_ranks

_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


def select_events(events: Events, mask: NDArray[np.bool_], allocations: NDArray[np.bool_]) -> Events:
    """Return the rows of `mask` (bool[N]) of every column, the rows of side tables that refer to them, and allocations.

    `allocations` selects rows of that table, which do not refer to events.
    """
    return replace(
        select_rows(events, mask),
        **{name: _select_references(getattr(events, name), mask) for name in SIDE_TABLES if name != "allocations"},
        allocations=select_rows(events.allocations, allocations),
    )


def _select_references(table: Any, mask: NDArray[np.bool_]) -> Any:
    """Return the table's rows that refer to events of `mask` (bool[N]), with the events' new row numbers."""
    selected = select_rows(table, mask[table.row])
    return replace(selected, row=(np.cumsum(mask) - 1)[selected.row])


def cut_to_step(trace: Trace, number: int) -> Trace:
    """Return ProfilerStep#`number` alone, with the window it has in the whole trace; the step must exist.

    It keeps host rows that begin in the step and the device work launched there, unlinked device work that begins in
    the window, and, of the rows open at the step's start, Python frames and annotations that span the whole step.
    """
    all_steps = steps(trace)
    index = int(np.flatnonzero(all_steps.number == number)[-1])
    host, window = all_steps.host[index], all_steps.window[index]
    only = OneStep(
        number=number,
        host_ns=(int(host[0]), int(host[1])),
        window_ns=(int(window[0]), int(window[1])),
        by_device=all_steps.by_device,
        is_partial=bool(all_steps.partial[index]),
        label=all_steps.labels[index] if all_steps.labels else "",
        opens_ns=all_steps.opens_ns if index == 0 else None,
        unrecorded_ns=tuple((start, end) for start, end in unrecorded_work(trace).tolist()),
    )
    mask = _host_rows(trace, host) | _device_rows(trace, index)
    allocated_ns = trace.events.allocations.ts
    in_step = (allocated_ns >= host[0]) & (allocated_ns < host[1])
    return replace(trace, events=select_events(trace.events, mask, in_step), only=only)


def _host_rows(trace: Trace, host: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows of Events are host rows of the step: bool[N]."""
    events = trace.events
    start, end = host.tolist()
    is_open = (events.ts < start) & (events.end > start)
    frames = events.category == Category.PYTHON
    spanning = (events.category == Category.ANNOTATION) & (events.end >= end) & (tracks(trace) == main_track(trace))
    begins = (events.ts >= start) & (events.ts < end)
    return np.asarray((begins | (is_open & (frames | spanning))) & ~np.isin(events.category, _DEVICE))


def _device_rows(trace: Trace, index: int) -> NDArray[np.bool_]:
    """Return which rows of Events are device rows of the step, with those of its window that are of none: bool[N]."""
    work, mask = device_work(trace), np.zeros(len(trace.events), np.bool_)
    is_early = work.before_window & (span_index(steps(trace).window, work.start) == index)
    mask[work.rows[(step_of_work(trace) == index) | is_early]] = True
    return mask


def only_step(run: Run, number: int) -> Run:
    """Return ProfilerStep#`number` of every rank that has it; a caveat names the others, which are left out.

    Raises UsageFault, with the steps that exist, if no trace has it.
    """
    numbers = {trace.rank: step_numbers(steps(trace)) for trace in run.traces}
    cut = (cut_to_step(trace, number) if number in numbers[trace.rank] else trace for trace in run.traces)
    return with_step(replace(run, traces=tuple(cut)), number, numbers)


def step_numbers(steps: Steps) -> frozenset[int]:
    """Return the numbers of a trace's steps; empty for a trace without step marks."""
    return frozenset(steps.number.tolist()) if steps.marked else frozenset()


def with_step(run: Run, number: int, numbers: Mapping[int, Collection[int]]) -> Run:
    """Return the same as `only_step` for traces that are already cut; `numbers` are the step numbers of each rank."""
    if not any(number in of_rank for of_rank in numbers.values()):
        existing = sorted(set().union(*numbers.values()))
        expected = f"one of {format_ranks(existing)}" if existing else MARK_STEPS
        raise UsageFault(NO_STEP.format(path=run.path, number=number, expected=expected))
    cut = tuple(trace for trace in run.traces if trace.only is not None)
    by_rank = {trace.rank: trace for trace in cut}
    lacking = [rank for rank, of_rank in numbers.items() if number not in of_rank]
    text = STEP_LACKS.format(number=number, ranks=name_ranks(lacking))
    caveats = (Caveat("no_such_step", text),) if lacking else ()
    flights = tuple(_within(flight, by_rank[flight.rank]) for flight in run.flights if flight.rank in by_rank)
    return replace(run, traces=cut, flights=flights, caveats=(*run.caveats, *caveats))


def _within(flight: Flight, trace: Trace) -> Flight:
    """Return the flight recorder's entries that were created while the step ran on the host."""
    assert trace.only is not None
    begin, end = (trace.base_time_ns + edge for edge in trace.only.host_ns)
    rows = np.flatnonzero((flight.created_ns >= begin) & (flight.created_ns < end))
    columns = {field.name: getattr(flight, field.name) for field in fields(flight)}
    cut: dict[str, Any] = {name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray)}
    cut |= {name: tuple(column[row] for row in rows) for name, column in columns.items() if isinstance(column, tuple)}
    return replace(flight, **cut)
