"""How long is a step, on every rank?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.analyses.perturbation import perturbation_words
from traceq.analyses.wording import MOST_RANKS, more_rows
from traceq.intervals import measure_within, spans
from traceq.links.steps import steps
from traceq.model import Category, Caveat, Run, Trace
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


def analyze(run: Run) -> Report:
    """Windows of all steps. The window is the device's where there is device work and more than one step."""
    rows = tuple(row for trace in run.traces for row in _rows(trace))
    table = Table("steps", "Steps", _COLUMNS, rows)
    if not run.traces:
        return Report("steps", (table,))
    drawn = [_each(trace) for trace in run.traces]
    columns = (*_VIEW, _EACH) if any(drawn) else _VIEW
    lines = [(*_summary(trace), each)[: len(columns)] for trace, each in zip(run.traces, drawn, strict=True)]
    longest = sorted(lines, key=lambda line: -float(line[2] or 0))[:MOST_RANKS]
    shown = tuple(line for line in lines if line in longest)
    note = " ".join(filter(None, [_note(run), perturbation_words(run), more_rows(len(lines) - len(shown))]))
    view = Table("steps", "Steps", columns, shown, note=note)
    caveats = tuple(caveat for trace in run.traces for caveat in _caveats(trace))
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


def _summary(trace: Trace) -> tuple[Cell, ...]:
    found = steps(trace)
    counted = found.counted
    window_ns = (found.window[:, 1] - found.window[:, 0])[counted]
    host_ns = (found.host[:, 1] - found.host[:, 0])[counted]
    lag_ns = (found.window[:, 1] - found.host[:, 1])[counted]
    return (
        trace.rank,
        int(counted.sum()),
        float(np.mean(window_ns)),
        int(window_ns.min()),
        int(window_ns.max()),
        float(np.mean(host_ns)),
        float(np.mean(lag_ns)),
    )


def _each(trace: Trace) -> str:
    """The counted steps as a curve; "" where there are too few to make one."""
    found = steps(trace)
    window_ns = (found.window[:, 1] - found.window[:, 0])[found.counted]
    return sparkline(window_ns.tolist()) if len(window_ns) >= _CURVE else ""


def _note(run: Run) -> str:
    if not steps(run.traces[0]).marked:
        return ""
    num_left_out = sum(int((~steps(trace).counted).sum()) for trace in run.traces)
    windows = "partial first window is" if num_left_out == 1 else f"{num_left_out} partial first windows are"
    left_out = f"; the {windows} left out" if num_left_out else ""
    kind = "to the end of the device work it launched" if steps(run.traces[0]).by_device else "as the host ran it"
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
