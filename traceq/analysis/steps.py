"""How long is a step, on every rank?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._parts import of_all
from traceq.analysis._wording import MOST_RANKS, more_rows
from traceq.analysis.perturbation import perturbation_words
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.steps import Steps, steps
from traceq.intervals import measure_within, spans
from traceq.model import Category, Caveat, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit, format_value, sparkline

POSITION = 10

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("index", "step", Unit.COUNT),
    Column("name", "name"),
    Column("dur_ns", "host", Unit.NS),
    Column("window", "window"),
    Column("window_ns", "window", Unit.NS),
    Column("partial", "partial"),
    Column("lag_ns", "lag", Unit.NS),
    Column("overhead_ns", "overhead", Unit.NS),
)
_OVERHEAD = 0.02
_VIEW = (
    Column("rank", "rank", Unit.COUNT),
    Column("num", "steps", Unit.COUNT),
    Column("mean_ns", "step, mean", Unit.NS),
    Column("min_ns", "shortest", Unit.NS),
    Column("max_ns", "longest", Unit.NS),
    Column("host_ns", "host, mean", Unit.NS),
    Column("lag_ns", "device lags", Unit.NS),
)
_EACH = Column("each", "each step")
_CURVE = 5  # steps that make one


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, and what is doubtful about its steps."""

    rows: tuple[tuple[Cell, ...], ...]
    caveats: tuple[Caveat, ...]


def summarize(trace: Trace) -> _Rank:
    """Windows of all steps. The window is the device's where there is device work and more than one step."""
    return _Rank(tuple(_rows(trace)), tuple(_caveats(trace)))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see one line for each of the slowest."""
    table = Table("steps", "Steps", _COLUMNS, of_all(parts))
    if not job.ranks:
        return Report("steps", (table,))
    drawn = [_each(rank.steps) for rank in job.ranks]
    columns = (*_VIEW, _EACH) if any(drawn) else _VIEW
    lines = [(*_summary(rank), each)[: len(columns)] for rank, each in zip(job.ranks, drawn, strict=True)]
    longest = sorted(lines, key=lambda line: -float(line[2] or 0))[:MOST_RANKS]
    shown = tuple(line for line in lines if line in longest)
    note = " ".join(filter(None, [_note(job), perturbation_words(job), more_rows(len(lines) - len(shown))]))
    view = Table("steps", "Steps", columns, shown, note=note)
    caveats = tuple(caveat for part in parts for caveat in part.caveats)
    return Report("steps", (table,), (view,), caveats=caveats[:1])


def _rows(trace: Trace) -> list[tuple[Cell, ...]]:
    found = steps(trace)
    window_ns = (found.window[:, 1] - found.window[:, 0]).tolist()
    host_ns = (found.host[:, 1] - found.host[:, 0]).tolist()
    lag_ns = (found.window[:, 1] - found.host[:, 1]).tolist()
    kind, overhead_ns = "device" if found.by_device else "host", _overhead(trace).tolist()
    numbers = zip(window_ns, found.partial.tolist(), lag_ns, overhead_ns, strict=True)
    names = found.names
    return [(trace.rank, at, names[at], host_ns[at], kind, *rest) for at, rest in enumerate(numbers)]


def _overhead(trace: Trace) -> NDArray[np.int64]:
    """int64[K] ns of each host step in which the profiler was busy with itself, or kernels were being loaded."""
    events, host = trace.events, steps(trace).host
    rows = events.rows(Category.OVERHEAD)
    return measure_within(spans(events.ts[rows], events.end[rows]), host[:, 0], host[:, 1])


def _summary(rank: Outline) -> tuple[Cell, ...]:
    found = rank.steps
    counted = found.counted
    window_ns = (found.window[:, 1] - found.window[:, 0])[counted]
    host_ns = (found.host[:, 1] - found.host[:, 0])[counted]
    lag_ns = (found.window[:, 1] - found.host[:, 1])[counted]
    return (
        rank.rank,
        int(counted.sum()),
        float(np.mean(window_ns)),
        int(window_ns.min()),
        int(window_ns.max()),
        float(np.mean(host_ns)),
        float(np.mean(lag_ns)),
    )


def _each(found: Steps) -> str:
    """The counted steps as a curve; "" where there are too few to make one."""
    window_ns = (found.window[:, 1] - found.window[:, 0])[found.counted]
    return sparkline(window_ns.tolist()) if len(window_ns) >= _CURVE else ""


def _note(job: Job) -> str:
    first = job.ranks[0].steps
    if not first.marked:
        return ""
    num_left_out = sum(int((~rank.steps.counted).sum()) for rank in job.ranks)
    windows = "partial first window is" if num_left_out == 1 else f"{num_left_out} partial first windows are"
    left_out = f"; the {windows} left out" if num_left_out else ""
    kind = "to the end of the device work it launched" if first.by_device else "as the host ran it"
    return f"A step lasts {kind}{left_out}."


def _caveats(trace: Trace) -> list[Caveat]:
    found = steps(trace)
    if found.marked:
        share = np.where(found.counted, _overhead(trace) / (found.host[:, 1] - found.host[:, 0]), 0.0)
        worst = int(np.argmax(share))
        if share[worst] < _OVERHEAD:
            return []
        took = format_value(int(_overhead(trace)[worst]), Unit.NS)
        of = f"{format_value(100 * float(share[worst]), Unit.PERCENT)} of {found.names[worst]}"
        text = f"rank {trace.rank}: {took} ({of}) is the profiler's own, or loads kernels: discount that step"
        return [Caveat("overhead", text)]
    return [Caveat("no_steps", "the trace has no ProfilerStep marks: it counts as one step, `whole trace`")]
