"""The trace's own events as slices: host threads and device streams, each launch joined to the work it started."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import numbers_used
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.steps import main_track
from traceq.model import Trace
from traceq.renderers.perfetto.lanes import lanes
from traceq.renderers.perfetto.slices import Argument, Slices, Track

__all__ = ["recorded"]

_DEVICE, _MAIN_THREAD, _OTHER_THREADS = 10_000, 20_000, 30_000  # where their tracks begin, from top to bottom


def recorded(trace: Trace, parent: int, first_flow: int) -> tuple[list[Track], Slices]:
    """Every event on the track of its thread or stream, in the trace's own time.

    The tracks' uuids follow `parent`; flows are numbered from `first_flow` on.
    """
    events = trace.events
    track, lane = tracks(trace), lanes(tracks(trace), events.ts, events.end)
    joint = track * (lane.max(initial=0) + 1) + lane
    _, first, of_row = np.unique(joint, return_index=True, return_inverse=True)
    is_device = np.zeros(len(first), np.bool_)
    is_device[of_row[device_work(trace).rows]] = True
    is_main = track[first] == main_track(trace)
    order = np.where(is_device, _DEVICE, np.where(is_main, _MAIN_THREAD, _OTHER_THREADS)) + np.arange(len(first))
    described = [
        Track(parent + 1 + at, name, place, parent)
        for at, (name, place) in enumerate(zip(_track_names(trace, first), order.tolist(), strict=True))
    ]
    name, names = _used(events.name, events.strings)
    category, categories = _used(events.cat, events.strings)
    return described, Slices(
        track=parent + 1 + of_row,
        start=events.ts,
        end=events.end,
        name=name,
        names=names,
        category=category,
        categories=categories,
        flow=_flows(trace, first_flow),
        arguments=_arguments(trace),
    )


def _track_names(trace: Trace, first: NDArray[np.int64]) -> list[str]:
    """The trace's name of the thread or stream of each of these rows, else its number."""
    events = trace.events
    known = {(thread.pid, thread.tid): thread.name.strip() for thread in trace.threads}
    found = []
    for row in first.tolist():
        pid, tid = events.strings[events.pid[row]], events.strings[events.tid[row]]
        found.append(known.get((pid, tid)) or f"thread {tid} of {pid}")
    return found


def _used(ids: NDArray[np.int32], strings: tuple[str, ...]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(index of each, the texts that occur)."""
    distinct, inverse = numbers_used(ids, len(strings) + 1)
    texts = (*strings, "")
    return inverse, tuple(texts[number] for number in distinct.tolist())


def _flows(trace: Trace, first: int) -> NDArray[np.int64]:
    """One number for each launching call and all it started; 0 for the rest."""
    work = device_work(trace)
    calls, inverse = np.unique(work.call[work.linked], return_inverse=True)
    flow = np.zeros(len(trace.events), np.int64)
    flow[calls] = first + np.arange(len(calls))
    flow[work.rows[work.linked]] = first + inverse
    return flow


def _arguments(trace: Trace) -> list[Argument]:
    """Bytes and correlation, and what collectives say of themselves."""
    events, messages = trace.events, trace.events.messages
    found = [Argument("bytes", events.bytes), Argument("correlation", events.correlation)]

    def spread(values: NDArray[np.int64]) -> NDArray[np.int64]:
        whole = np.full(len(events), -1)
        whole[messages.row] = values
        return whole

    for name, ids in (("collective", messages.name), ("dtype", messages.dtype), ("group", messages.group)):
        numbers, texts = _used(ids, events.strings)
        found.append(Argument(name, spread(np.where(ids >= 0, numbers, -1)), texts))
    told = (("elements_in", messages.elements_in), ("elements_out", messages.elements_out), ("seq", messages.sequence))
    return found + [Argument(name, spread(values)) for name, values in told]
