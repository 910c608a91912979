"""Phases of a loop that do not nest: one that begins inside another interrupts it.

An optimizer may run the forward and the backward in its closure; each gets its time, and the optimizer the rest.
"""

from __future__ import annotations

from traceq.recorder.spec.phases import Phases

__all__ = ["PhaseStack"]


class PhaseStack:
    """Phases that have begun, of which the last is open. Without `phases` it only keeps their names."""

    __slots__ = ("_events", "_is_open", "_names", "phases")

    def __init__(self) -> None:
        self.phases: Phases | None = None
        self._names: list[str] = []
        self._events: list[str] = []
        self._is_open = False

    def has_event(self, event: str) -> bool:
        """Return True inside a phase that began with this event."""
        return event in self._events

    def begin(self, name: str, event: str = "") -> int:
        """Interrupt the current phase by this one; return the depth at which `end` ends it."""
        depth = len(self._names)
        self._names.append(name)
        self._events.append(event)
        if self.phases is not None:
            if self._is_open:
                self.phases.end()
            self.phases.begin(name)
            self._is_open = True
        return depth

    def end(self, depth: int) -> None:
        """End the phase that began at this depth, and all inside it; the one around it continues."""
        self.interrupt()
        del self._names[depth:], self._events[depth:]
        if depth:
            self.resume()

    def interrupt(self) -> None:
        """End the current phase until `resume`."""
        if self._is_open and self.phases is not None:
            self.phases.end()
        self._is_open = False

    def resume(self) -> None:
        """Begin the current phase again."""
        if self._names and self.phases is not None:
            self.phases.begin(self._names[-1])
            self._is_open = True
