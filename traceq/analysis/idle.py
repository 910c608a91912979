"""What fills the gaps in which the device has nothing to do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceq.analysis._parts import of_all
from traceq.analysis._wording import a_step, more_rows, python_place, stepwise
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.idle_time import IdleCause, idleness
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.grouping import group
from traceq.model import Trace
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


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, and its step, ns."""

    rows: tuple[_Row, ...]
    step_ns: float


def summarize(trace: Trace) -> _Rank:
    """Idle time of the counted steps by cause, op, line and phase; adds up to the idle categories of the partition.

    A gap in which several things happen counts for each, with the part that each fills.
    """
    return _Rank(tuple(_rows(trace)), _step_ns(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see the mean over them."""
    rows = of_all(parts)
    step_ns = sum(part.step_ns for part in parts)
    idle_ns = sum(row[9] for row in rows)
    view = (_view(job, rows, idle_ns, step_ns),) if rows and idle_ns >= _TELLING * step_ns else ()
    return Report("idle", (Table("idle", "Idle time", _COLUMNS, rows),), view)


def _rows(trace: Trace) -> list[_Row]:
    found, known = idleness(trace), phases(trace).names
    ns = found.parts[:, 1] - found.parts[:, 0]
    groups = group([found.cause, found.doing, found.phase, found.name, found.line])
    num, longest = groups.by_part(found.gap, ns)
    num_steps = int(steps(trace).counted.sum())
    rows: list[_Row] = []
    for at, total in enumerate(groups.sum(ns)):
        cause, doing, phase, name, line = groups.keys[at].tolist()
        why, category = IdleCause(cause).name.lower().replace("_", " "), TimeCategory(doing).name.lower()
        words = (why, category, known[phase], found.texts[name], found.texts[line])
        rows.append(("|".join(words), trace.rank, *words, num[at], total, round(total / num_steps), longest[at]))
    return sorted(rows, key=lambda row: (-row[8], row[0]))


def _step_ns(trace: Trace) -> float:
    windows = steps(trace).window[steps(trace).counted]
    return float((windows[:, 1] - windows[:, 0]).mean())


def _view(job: Job, rows: Sequence[_Row], idle_ns: float, step_ns: float) -> Table:
    """The largest rows, mean over ranks."""
    merged: dict[tuple[Cell, ...], list[int]] = {}
    for row in rows:
        total = merged.setdefault(tuple(row[at] for at in _SHOWN), [0, 0, 0])
        total[:] = total[0] + row[7], total[1] + row[9], max(total[2], row[10])
    largest = sorted(merged.items(), key=lambda item: -item[1][1])
    num_ranks = len(job.ranks)
    shown = []
    for (cause, op, *where), (gaps, each_ns, longest) in largest[:_TOP]:
        what = python_place(str(op)) if cause == "python" else op
        shown.append((cause, what, *where, gaps, each_ns / num_ranks, longest, 100 * each_ns / step_ns))
    who = "The device idles" if any(rank.has_device for rank in job.ranks) else "The main thread runs no op for"
    idle, share = format_value(idle_ns / num_ranks, Unit.NS), format_value(100 * idle_ns / step_ns, Unit.PERCENT)
    note = f"{who} {idle} of {a_step(job.ranks[0].steps)}, {share}. {more_rows(len(largest) - _TOP)}".strip()
    of = " (mean of ranks)" if num_ranks > 1 else ""
    return Table("idle", f"What fills idle time{of}", stepwise(_VIEW, job), tuple(shown), note=note)
