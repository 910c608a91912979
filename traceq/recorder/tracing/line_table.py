"""Python line of each op of a step, from the trace of one step with line marks."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceq.facts.timeline.phases import OTHER
from traceq.model import SourceLines
from traceq.recorder.tracing.line_marks import PREFIX

__all__ = ["TraceRow", "read_rows", "source_lines"]

_STEP = "ProfilerStep#"


class TraceRow(msgspec.Struct, frozen=True):
    """An event of a trace; `ph` is X for events with a duration."""

    name: str = ""
    cat: str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = 0.0
    ph: str = ""

    @property
    def end(self) -> float:
        """End of the event, us."""
        return self.ts + self.dur


class _Document(msgspec.Struct):
    traceEvents: list[TraceRow]  # noqa: N815 (Kineto's key)


@dataclass(frozen=True, slots=True)
class _Op:
    phase: str
    name: str
    line: str


def read_rows(path: Path) -> list[TraceRow]:
    """Return the events of a trace file, in its order."""
    with gzip.open(path) as file:
        return msgspec.json.decode(file.read(), type=_Document, strict=False).traceEvents


def source_lines(rows: Sequence[TraceRow], phases: Sequence[str]) -> SourceLines:
    """Return the line of the n-th outermost op per name and phase of the step; "" if no mark precedes it.

    The main thread is the one with the ProfilerStep annotation; the last of several steps is used.
    """
    steps = [row for row in rows if row.name.startswith(_STEP) and row.cat == "user_annotation"]
    if not steps:
        return SourceLines((), {})
    step = max(steps, key=lambda row: row.ts)
    main = [row for row in rows if row.tid == step.tid and step.ts <= row.ts < step.end]
    index: dict[str, int] = {}
    table: dict[str, list[int]] = defaultdict(list)
    for op in _ops(sorted(main, key=lambda row: (row.ts, -row.dur)), frozenset(phases)):
        table[f"{op.phase or OTHER}|{op.name}"].append(index.setdefault(op.line, len(index)))
    return SourceLines(tuple(index), {key: tuple(indices) for key, indices in table.items()})


def _ops(rows: Iterable[TraceRow], phases: frozenset[str]) -> Iterable[_Op]:
    """Yield the outermost ops in order of time; `rows` is sorted by start, parents before children."""
    line, phase = "", ""
    phase_end = op_end = 0.0
    for row in rows:
        if row.ts >= phase_end:
            phase = ""
        if row.cat == "user_annotation" and row.name in phases and not phase:
            phase, phase_end = row.name, row.end
        elif row.cat == "cpu_op" and row.name.startswith(PREFIX):
            line = row.name.removeprefix(PREFIX)
        elif row.cat == "cpu_op" and row.ts >= op_end:
            op_end = row.end
            yield _Op(phase, row.name, line)
