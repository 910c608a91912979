"""A trace cut to one of its steps: what the host did in it, and what it launched there, wherever that ran."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.steps import main_track, steps
from traceq.model import Allocations, CallStacks, Category, Events, EventWaits, Messages, OneStep, Trace

__all__ = ["cut_to_step"]

T = TypeVar("T", Messages, CallStacks, EventWaits)
C = TypeVar("C", Messages, CallStacks, EventWaits, Allocations)

_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


def cut_to_step(trace: Trace, number: int) -> Trace:
    """ProfilerStep#`number` alone, with the window that it has in the whole trace, which has to have one.

    Kept is what begins in the step on the host and the device work launched there; of device work that nobody launched
    what begins in the window; and of what is open when the step begins Python frames and what spans all of it.
    """
    known = steps(trace)
    at = int(np.flatnonzero(known.number == number)[-1])
    host, window = known.host[at], known.window[at]
    only = OneStep(
        number=number,
        host_ns=(int(host[0]), int(host[1])),
        window_ns=(int(window[0]), int(window[1])),
        by_device=known.by_device,
        is_partial=bool(known.partial[at]),
    )
    kept = _of_host(trace, host) | _of_device(trace, host, window)
    return replace(trace, events=_selected(trace.events, kept, host), only=only)


def _of_host(trace: Trace, host: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[N]: host rows of the step."""
    events = trace.events
    start, end = host.tolist()
    is_open = (events.ts < start) & (events.end > start)
    frames = events.category == Category.PYTHON
    around = (events.category == Category.ANNOTATION) & (events.end >= end) & (tracks(trace) == main_track(trace))
    begins = (events.ts >= start) & (events.ts < end)
    mine: NDArray[np.bool_] = (begins | (is_open & (frames | around))) & ~np.isin(events.category, _DEVICE)
    return mine


def _of_device(trace: Trace, host: NDArray[np.int64], window: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[N]: device rows of the step."""
    events, work = trace.events, device_work(trace)
    launched = np.where(work.linked, events.ts[work.call], work.start)
    begin, end = np.where(work.linked[:, None], host, window).T
    mine = np.zeros(len(events), np.bool_)
    mine[work.rows[(launched >= begin) & (launched < end)]] = True
    return mine


def _selected(events: Events, kept: NDArray[np.bool_], host: NDArray[np.int64]) -> Events:
    """The kept rows of every column, and what stands in tables of their own about them."""
    columns = {field.name: getattr(events, field.name) for field in fields(events)}
    cut: dict[str, Any] = {name: column[kept] for name, column in columns.items() if isinstance(column, np.ndarray)}
    given = events.allocations.ts
    return replace(
        events,
        **cut,
        messages=_about(events.messages, kept),
        stacks=_about(events.stacks, kept),
        waits=_about(events.waits, kept),
        allocations=_picked(events.allocations, (given >= host[0]) & (given < host[1])),
    )


def _about(table: T, kept: NDArray[np.bool_]) -> T:
    """The table's rows about events that are kept, by their new numbers."""
    mine = _picked(table, kept[table.row])
    return replace(mine, row=(np.cumsum(kept) - 1)[mine.row])


def _picked(table: C, mine: NDArray[np.bool_]) -> C:
    return replace(table, **{field.name: getattr(table, field.name)[mine] for field in fields(table)})
