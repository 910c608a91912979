"""What fills the gaps in which the device has nothing to do?"""

from __future__ import annotations

import numpy as np

from traceq.analyses.tally import group
from traceq.analyses.wording import a_step, more_rows, python_place, stepwise
from traceq.links.activity import Doing
from traceq.links.idleness import Cause, idleness
from traceq.links.launches import device_work
from traceq.links.phases import phases
from traceq.links.steps import steps
from traceq.model import Run, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit, format_value

POSITION = 58

_TOP = 6
_TELLING = 0.02
"""Idle part of a step from which people are shown what fills it."""

_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("cause", "cause"),
    Column("category", "category"),
    Column("phase", "phase"),
    Column("op", "op"),
    Column("line", "line"),
    Column("num", "gaps", Unit.COUNT),
    Column("ns", "time", Unit.NS),
    Column("step_ns", "a step", Unit.NS),
    Column("longest_ns", "longest", Unit.NS),
)
_VIEW = (
    Column("cause", "cause"),
    Column("op", "op"),
    Column("line", "line"),
    Column("phase", "phase"),
    Column("num", "gaps", Unit.COUNT),
    Column("step_ns", "a step", Unit.NS),
    Column("longest_ns", "longest", Unit.NS),
    Column("share", "share", Unit.PERCENT),
)
_SHOWN = (2, 5, 6, 4)

_Row = tuple[str, int, str, str, str, str, str, int, int, int, int]


def analyze(run: Run) -> Report:
    """Idle time of the counted steps by cause, op, line and phase; adds up to the idle categories of the partition.

    A gap in which several things happen counts for each, with the part that each fills.
    """
    rows = tuple(row for trace in run.traces for row in _rows(trace))
    step_ns = sum(_step_ns(trace) for trace in run.traces)
    idle_ns = sum(row[9] for row in rows)
    view = (_view(run, rows, idle_ns, step_ns),) if rows and idle_ns >= _TELLING * step_ns else ()
    return Report("idle", (Table("idle", "Idle time", _COLUMNS, rows),), view)


def _rows(trace: Trace) -> list[_Row]:
    found, known = idleness(trace), phases(trace).names
    ns = found.parts[:, 1] - found.parts[:, 0]
    groups = group([found.cause, found.doing, found.phase, found.name, found.line])
    per_gap = group([found.gap, groups.of_row])  # gaps ascend, which sorts in no time
    filled = np.array(per_gap.sum(ns), np.int64)
    longest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(longest, per_gap.keys[:, 1], filled)
    num = np.bincount(per_gap.keys[:, 1], minlength=len(groups.keys)).tolist()
    num_steps = int(steps(trace).counted.sum())
    rows: list[_Row] = []
    for at, total in enumerate(groups.sum(ns)):
        cause, doing, phase, name, line = groups.keys[at].tolist()
        why, category = Cause(cause).name.lower().replace("_", " "), Doing(doing).name.lower()
        words = (why, category, known[phase], found.texts[name], found.texts[line])
        rows.append(("|".join(words), trace.rank, *words, num[at], total, round(total / num_steps), int(longest[at])))
    return sorted(rows, key=lambda row: (-row[8], row[0]))


def _step_ns(trace: Trace) -> float:
    windows = steps(trace).window[steps(trace).counted]
    return float((windows[:, 1] - windows[:, 0]).mean())


def _view(run: Run, rows: tuple[_Row, ...], idle_ns: float, step_ns: float) -> Table:
    """The largest rows, mean over ranks."""
    merged: dict[tuple[Cell, ...], list[_Row]] = {}
    for row in rows:
        merged.setdefault(tuple(row[at] for at in _SHOWN), []).append(row)
    largest = sorted(merged.items(), key=lambda item: -sum(row[9] for row in item[1]))
    shown = []
    for (cause, op, *where), same in largest[:_TOP]:
        each_ns = sum(row[9] for row in same)
        gaps, longest = sum(row[7] for row in same), max(row[10] for row in same)
        what = python_place(str(op)) if cause == "python" else op
        shown.append((cause, what, *where, gaps, each_ns / len(run.traces), longest, 100 * each_ns / step_ns))
    has_device = any(len(device_work(trace)) for trace in run.traces)
    who = "The device idles" if has_device else "The main thread runs no op for"
    idle, share = format_value(idle_ns / len(run.traces), Unit.NS), format_value(100 * idle_ns / step_ns, Unit.PERCENT)
    note = f"{who} {idle} of {a_step(run.traces[0])}, {share}. {more_rows(len(largest) - _TOP)}".strip()
    of = " (mean of ranks)" if len(run.traces) > 1 else ""
    return Table("idle", f"What fills idle time{of}", stepwise(_VIEW, run), tuple(shown), note=note)
