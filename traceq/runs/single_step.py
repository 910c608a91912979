"""Restriction of a run to one step of its traces."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from traceq.errors import UsageFault
from traceq.facts.timeline.single_step import cut_to_step
from traceq.facts.timeline.steps import Steps, steps
from traceq.model import Caveat, Flight, Run, Trace
from traceq.units import format_ranks, name_ranks


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
        hint = "a trace with steps: call profiler.step() after each"
        expected = f"one of {format_ranks(existing)}" if existing else hint
        raise UsageFault(f"{run.path}: no step {number}; expected {expected}")
    cut = tuple(trace for trace in run.traces if trace.only is not None)
    by_rank = {trace.rank: trace for trace in cut}
    lacking = [rank for rank, of_rank in numbers.items() if number not in of_rank]
    text = f"no step {number} on {name_ranks(lacking)}: left out"
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
