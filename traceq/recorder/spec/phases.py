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
from traceq.recorder.spec.parameters import check_phase, did_you_mean

try:
    import nvtx
except ImportError:  # the job's Python may lack it: nothing but the ranges that its tools show
    _RANGES: Any = None
else:
    _RANGES = nvtx.get_domain()


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


_Range = tuple[object | None, AbstractContextManager[object] | None]
"""An open range of a tool, by its attributes, and one of the profiler."""
_NO_RANGE: _Range = (None, None)


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
    1 us. `elapsed_ns`: time so far in each outermost phase, once it has ended; `events`: those of the device.

    Phases that do not nest are timed by their owner, which adds to `elapsed_ns`, and calls `switch` if `is_shown`.
    """

    __slots__ = (
        "_attributes",
        "_began",
        "_current",
        "_declared",
        "_on_enter",
        "_open",
        "_range",
        "elapsed_ns",
        "event",
        "events",
        "profiling",
    )

    def __init__(self, names: Sequence[str] = (), on_enter: Callable[[], None] | None = None) -> None:
        self.profiling = False
        self.event: Callable[[], torch.cuda.Event | None] | None = None
        self.elapsed_ns: dict[str, int] = defaultdict(int, dict.fromkeys(names, 0))
        self.events: list[PhaseEvents] = []
        self._declared = tuple(names)
        self._attributes = {name: _range_attributes(name) for name in names}
        self._on_enter = on_enter
        self._open: list[tuple[str, int, torch.cuda.Event | None, _Range]] = []
        self._current, self._range = "", _NO_RANGE  # by the last switch
        self._began: torch.cuda.Event | None = None

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Assign everything in the block to the phase; UsageFault for a name that is not declared."""
        return _Phase(self, name)

    def begin(self, name: str) -> None:
        """Begin a phase, inside those that are open; UsageFault for a name that is not declared."""
        if name not in self._attributes:
            self._add_name(name)
        if self._on_enter is not None:
            self._on_enter()
        opened = self._open_range(name)
        began = self.event() if self.event and not self._open and not self.profiling else None
        self._open.append((name, perf_counter_ns(), began, opened))

    def end(self) -> None:
        """End the phase that began last."""
        now_ns = perf_counter_ns()
        name, start_ns, began, opened = self._open.pop()
        if not self._open:
            self.elapsed_ns[name] += now_ns - start_ns
        if began and self.event and (ended := self.event()):
            self.events.append(PhaseEvents(name, began, ended))
        _close_range(opened)

    @property
    def is_shown(self) -> bool:
        """Whether phases are ranges of a profiler or tool, or have events of the device."""
        return self.profiling or _HAS_TOOL or self.event is not None

    def switch(self, name: str) -> None:
        """Show that the phase of the last switch has ended, and that this one begins unless it is ""."""
        _close_range(self._range)
        self._range = _NO_RANGE
        if name and name not in self._attributes:
            self._add_name(name)
        if name and (self.profiling or _HAS_TOOL):
            self._range = self._open_range(name)
        if self.event is not None and not self.profiling:
            event = self.event()
            if self._current and self._began is not None and event is not None:
                self.events.append(PhaseEvents(self._current, self._began, event))
            self._began = event
        self._current = name

    @property
    def names(self) -> tuple[str, ...]:
        """Declared phases, or those seen so far, in order."""
        return tuple(self.elapsed_ns)

    def _add_name(self, name: str) -> None:
        if self._declared:
            hint, declared = did_you_mean(name, self._declared), ", ".join(self._declared)
            raise UsageFault(f"phase {name!r} is not declared{hint}; declared: {declared}")
        check_phase(name)
        self._attributes[name] = _range_attributes(name)
        self.elapsed_ns[name] += 0

    def _open_range(self, name: str) -> _Range:
        attributes = self._attributes[name]
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
        return attributes, profiled


def _close_range(opened: _Range) -> None:
    attributes, profiled = opened
    if profiled is not None:
        profiled.__exit__(None, None, None)
    if attributes is not None:
        _RANGES.pop_range()
