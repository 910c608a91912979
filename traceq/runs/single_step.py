"""A run cut to one step of its traces."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from traceq.errors import UnreadableInput
from traceq.facts.timeline.single_step import cut_to_step
from traceq.facts.timeline.steps import Steps, steps
from traceq.model import Caveat, Flight, Run, Trace
from traceq.units import format_ranks

__all__ = ["numbers_of", "only_step", "with_step"]


def only_step(run: Run, number: int) -> Run:
    """ProfilerStep#`number` of every rank that has it; the others are left out, and said to be.

    Raises UnreadableInput, which names the steps there are, where no trace has it.
    """
    known = {trace.rank: numbers_of(steps(trace)) for trace in run.traces}
    cut = (cut_to_step(trace, number) if number in known[trace.rank] else trace for trace in run.traces)
    return with_step(replace(run, traces=tuple(cut)), number, known)


def numbers_of(found: Steps) -> frozenset[int]:
    """Numbers of a trace's steps; none of one without."""
    return frozenset(found.number.tolist()) if found.marked else frozenset()


def with_step(run: Run, number: int, known: Mapping[int, Collection[int]]) -> Run:
    """The same for traces that are cut where they have the step; `known` are the numbers of each rank's."""
    if not any(number in own for own in known.values()):
        there = sorted(set().union(*known.values()))
        expected = f"one of {format_ranks(there)}" if there else "a trace with steps: call profiler.step() after each"
        raise UnreadableInput(run.path, f"no step {number}", expected)
    cut = tuple(trace for trace in run.traces if trace.only is not None)
    lacking = [rank for rank, own in known.items() if number not in own]
    text = f"no step {number} on ranks {format_ranks(lacking)}: they are left out"
    doubts = (Caveat("no_such_step", text),) if lacking else ()
    of_rank = {trace.rank: trace for trace in cut}
    flights = tuple(_within(flight, of_rank[flight.rank]) for flight in run.flights if flight.rank in of_rank)
    return replace(run, traces=cut, flights=flights, caveats=(*run.caveats, *doubts))


def _within(flight: Flight, trace: Trace) -> Flight:
    """What the flight recorder noted while the step ran on the host."""
    assert trace.only is not None
    begin, end = (trace.base_time_ns + edge for edge in trace.only.host_ns)
    mine = np.flatnonzero((flight.created_ns >= begin) & (flight.created_ns < end))
    columns = {field.name: getattr(flight, field.name) for field in fields(flight)}
    cut: dict[str, Any] = {name: column[mine] for name, column in columns.items() if isinstance(column, np.ndarray)}
    cut |= {name: tuple(column[at] for at in mine) for name, column in columns.items() if isinstance(column, tuple)}
    return replace(flight, **cut)
