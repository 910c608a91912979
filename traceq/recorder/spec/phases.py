"""Phases of a step: timed on every rank, and visible to the profiler and to nvtx tools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import record_function

from traceq.errors import UsageFault
from traceq.recorder.spec.names import check_phase
from traceq.recorder.spec.parameters import did_you_mean

try:
    import nvtx
except ImportError:  # the job's Python may lack it: nothing but the ranges that its tools show
    _RANGES: Any = None
else:
    _RANGES = nvtx.get_domain()

__all__ = ["PhaseEvents", "Phases", "Taken"]


def _range_attributes(name: str) -> object | None:
    """Return what makes a range of nvtx cost 0.1 us instead of 1 us; None without a tool to see it, or without nvtx."""
    return None if _RANGES is None else _RANGES.get_event_attributes(message=name)


_HAS_TOOL = _range_attributes("phase") is not None


@dataclass(frozen=True, slots=True)
class PhaseEvents:
    """Begin and end of an outermost phase on the device's stream."""

    name: str
    began: torch.cuda.Event
    ended: torch.cuda.Event


Taken = tuple[dict[str, int], list[PhaseEvents]]
"""Times of outermost phases, ns, and their events."""


class _Phase:
    """Context manager that begins and ends a phase."""

    __slots__ = ("_name", "_phases")

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases, self._name = phases, name

    def __enter__(self) -> None:
        self._phases.begin(self._name)

    def __exit__(self, *_: object) -> None:
        self._phases.end()


class Phases:
    """Factory of phases: `with phases("forward"):`. Ranges are closed in order, also after an exception.

    Without declared names every valid name is a phase. If `event` is set, it is called where an outermost phase begins
    and ends, unless steps are profiled; if it returns None there, the phase has no time of the device. A phase costs
    1 us.
    """

    __slots__ = (
        "_began",
        "_current",
        "_declared",
        "_elapsed_ns",
        "_events",
        "_on_enter",
        "_open",
        "_seen",
        "_since_ns",
        "event",
        "profiling",
    )

    def __init__(self, names: Sequence[str] = (), on_enter: Callable[[], None] | None = None) -> None:
        self.profiling = False
        self.event: Callable[[], torch.cuda.Event | None] | None = None
        self._declared = tuple(names)
        self._seen = {name: _range_attributes(name) for name in names}
        self._on_enter = on_enter
        self._elapsed_ns: dict[str, int] = defaultdict(int)
        self._events: list[PhaseEvents] = []
        self._open: list[tuple[str, int, torch.cuda.Event | None, AbstractContextManager[object] | None]] = []
        self._current, self._since_ns = "", 0  # by the last switch
        self._began: torch.cuda.Event | None = None

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Assign everything in the block to the phase; UsageFault for a name that is not declared."""
        return _Phase(self, name)

    def begin(self, name: str) -> None:
        """Begin a phase, inside those that are open; UsageFault for a name that is not declared."""
        if name not in self._seen:
            self._add_name(name)
        if self._on_enter is not None:
            self._on_enter()
        attributes = self._seen[name]
        if attributes is not None:
            _RANGES.push_range(attributes)
        profiled: AbstractContextManager[object] | None = None
        if self.profiling:  # a range of the profiler costs 12 us even when it is off
            try:
                profiled = record_function(name)
                profiled.__enter__()  # type: ignore[no-untyped-call]
            except BaseException:
                if attributes is not None:
                    _RANGES.pop_range()
                raise
        began = self.event() if self.event and not self._open and not self.profiling else None
        self._open.append((name, perf_counter_ns(), began, profiled))

    def end(self) -> None:
        """End the phase that began last."""
        now_ns = perf_counter_ns()
        name, start_ns, began, profiled = self._open.pop()
        if not self._open:
            self._elapsed_ns[name] += now_ns - start_ns
        if began and self.event and (ended := self.event()):
            self._events.append(PhaseEvents(name, began, ended))
        if profiled is not None:
            profiled.__exit__(None, None, None)
        if self._seen[name] is not None:
            _RANGES.pop_range()

    def switch(self, name: str) -> None:
        """End the phase that the last switch began, and begin this one unless it is "": of phases that do not nest."""
        if self.profiling or _HAS_TOOL:
            if self._open:
                self.end()
            if name:
                self.begin(name)
            self._current = ""
            return
        now_ns, current = perf_counter_ns(), self._current
        if current:
            if current not in self._seen:
                self._add_name(current)
            self._elapsed_ns[current] += now_ns - self._since_ns
        if self.event is not None:
            event = self.event()
            if current and self._began is not None and event is not None:
                self._events.append(PhaseEvents(current, self._began, event))
            self._began = event
        self._current, self._since_ns = name, now_ns

    def take(self) -> Taken:
        """Return the phases since the last call; one that has not ended is of the next."""
        taken = self._elapsed_ns, self._events
        self._elapsed_ns, self._events = defaultdict(int), []
        return taken

    @property
    def names(self) -> tuple[str, ...]:
        """Declared phases, or those seen so far, in order."""
        return tuple(self._seen)

    def _add_name(self, name: str) -> None:
        if self._declared:
            hint, declared = did_you_mean(name, self._declared), ", ".join(self._declared)
            raise UsageFault(f"phase {name!r} is not declared{hint}; declared: {declared}")
        check_phase(name)
        self._seen[name] = _range_attributes(name)
