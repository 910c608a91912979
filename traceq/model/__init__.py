"""Run > Trace > Events: recorded data as columns; no file formats, no arithmetic."""

from __future__ import annotations

from traceq.model.core_use import CoreUse
from traceq.model.memory_snapshot import Action, Blocks, Frame, History, MemorySnapshot, Segments
from traceq.model.odd_steps import OddSteps
from traceq.model.recording import (
    BUILT_APART,
    MUCH_SLOWER,
    NO_EFFECT,
    Arm,
    Fact,
    Manifest,
    Pairs,
    Processes,
    SourceLines,
    Timings,
)
from traceq.model.trace import (
    SLOWED_BY_STACKS,
    Allocations,
    CallStacks,
    CapturedGraphs,
    CapturedOp,
    Category,
    Caveat,
    Events,
    EventWaits,
    Flight,
    GraphNodes,
    Messages,
    OneStep,
    Run,
    Thread,
    Trace,
)

__all__ = [
    "BUILT_APART",
    "MUCH_SLOWER",
    "NO_EFFECT",
    "SLOWED_BY_STACKS",
    "Action",
    "Allocations",
    "Arm",
    "Blocks",
    "CallStacks",
    "CapturedGraphs",
    "CapturedOp",
    "Category",
    "Caveat",
    "CoreUse",
    "EventWaits",
    "Events",
    "Fact",
    "Flight",
    "Frame",
    "GraphNodes",
    "History",
    "Manifest",
    "MemorySnapshot",
    "Messages",
    "OddSteps",
    "OneStep",
    "Pairs",
    "Processes",
    "Run",
    "Segments",
    "SourceLines",
    "Thread",
    "Timings",
    "Trace",
]
