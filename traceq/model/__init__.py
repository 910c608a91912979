"""Run > Trace > Events: recorded data as columns; no file formats, no arithmetic."""

from __future__ import annotations

from traceq.model.recording import BUILT_APART, NO_EFFECT, Arm, Fact, Manifest, Pairs, Processes, SourceLines, Timings
from traceq.model.trace import (
    Allocations,
    CallStacks,
    Category,
    Caveat,
    Events,
    EventWaits,
    Flight,
    Messages,
    OneStep,
    Run,
    Thread,
    Trace,
)

__all__ = [
    "BUILT_APART",
    "NO_EFFECT",
    "Allocations",
    "Arm",
    "CallStacks",
    "Category",
    "Caveat",
    "EventWaits",
    "Events",
    "Fact",
    "Flight",
    "Manifest",
    "Messages",
    "OneStep",
    "Pairs",
    "Processes",
    "Run",
    "SourceLines",
    "Thread",
    "Timings",
    "Trace",
]
