"""Phases of a step: timed on every rank, and visible to the profiler and to nvtx tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns

import nvtx
import torch
from torch.profiler import record_function

from traceq.errors import UsageFault
from traceq.recorder.spec.names import check_phase
from traceq.recorder.spec.parameters import did_you_mean

__all__ = ["PhaseEvents", "Phases"]


@dataclass(frozen=True, slots=True)
class PhaseEvents:
    """Begin and end of an outermost phase on the device's stream."""

    name: str
    began: torch.cuda.Event
    ended: torch.cuda.Event


class Phases:
    """Factory of phases: `with phases("forward"):`. Ranges are closed in order, also after an exception.

    Without declared names every valid name is a phase. If `event` is set, it is called where an outermost phase begins
    and ends, unless steps are profiled.
    """

    __slots__ = ("_declared", "_depth", "_elapsed_ns", "_events", "_on_enter", "_seen", "event", "profiling")

    def __init__(self, names: Sequence[str] = (), on_enter: Callable[[], None] = lambda: None) -> None:
        self.profiling = False
        self.event: Callable[[], torch.cuda.Event] | None = None
        self._declared = tuple(names)
        self._seen = dict.fromkeys(names)
        self._on_enter = on_enter
        self._elapsed_ns: dict[str, int] = {}
        self._events: list[PhaseEvents] = []
        self._depth = 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Assign everything in the block to the phase; UsageFault for a name that is not declared."""
        if name not in self._seen:
            self._add_name(name)
        self._on_enter()
        nvtx.push_range(name)
        self._depth += 1
        try:
            with self._range(name):
                began = self.event() if self.event and self._depth == 1 and not self.profiling else None
                start = perf_counter_ns()
                try:
                    yield
                finally:
                    self._add_time(name, perf_counter_ns() - start)
                    if began and self.event:
                        self._events.append(PhaseEvents(name, began, self.event()))
        finally:
            self._depth -= 1
            nvtx.pop_range()

    def take(self) -> dict[str, int]:
        """Return the time of each outermost phase since the last call, ns; phases that did not run are missing."""
        elapsed_ns, self._elapsed_ns = self._elapsed_ns, {}
        return elapsed_ns

    def take_events(self) -> list[PhaseEvents]:
        """Return the events of the outermost phases since the last call, in order; empty without a device."""
        events, self._events = self._events, []
        return events

    @property
    def names(self) -> tuple[str, ...]:
        """Declared phases, or those seen so far, in order."""
        return tuple(self._seen)

    def _add_name(self, name: str) -> None:
        if self._declared:
            hint, declared = did_you_mean(name, self._declared), ", ".join(self._declared)
            raise UsageFault(f"phase {name!r} is not declared{hint}; declared: {declared}")
        check_phase(name)
        self._seen[name] = None

    def _range(self, name: str) -> AbstractContextManager[object]:
        # a range costs 12 us even when the profiler is off
        return record_function(name) if self.profiling else nullcontext()

    def _add_time(self, name: str, elapsed_ns: int) -> None:
        if self._depth == 1:
            self._elapsed_ns[name] = self._elapsed_ns.get(name, 0) + elapsed_ns
