"""The ranks that the timeline shows, the step that it shows on each of them, and the time that is its zero.

The ranks are the slowest, the median and the fastest, by what they wait for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceq.facts.ranks.job import job_of
from traceq.facts.timeline.steps import steps
from traceq.model import Run, Trace
from traceq.renderers.perfetto.worst_place import common_clock
from traceq.report import Cell, Sheet


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """One trace of the timeline.

    `step` is the index of the shown step; `zero_ns`, in the trace's own time, is where all traces are aligned; the
    window (`start_ns`, `end_ns`) is relative to that. `side` is A, B, or "" where there is one run; `title` says what
    the trace is.
    """

    trace: Trace
    title: str
    step: int
    zero_ns: int
    start_ns: int
    end_ns: int
    side: str = ""

    @property
    def window(self) -> tuple[int, int]:
        """The window in the trace's own time, ns."""
        return self.zero_ns + self.start_ns, self.zero_ns + self.end_ns

    @property
    def step_ns(self) -> tuple[int, int]:
        """Start and end of the shown step, on host and device, in the trace's own time."""
        return _extent(self.trace, self.step, 0)


def median_step(trace: Trace) -> int:
    """Return the index of the step of median duration among those that count."""
    counted = np.flatnonzero(steps(trace).counted)
    window = steps(trace).window[counted]
    return int(counted[np.argsort(window[:, 1] - window[:, 0], kind="stable")[(len(counted) - 1) // 2]])


def traces_of_run(run: Run, titles: Mapping[int, str], num_neighbours: int) -> tuple[ShownTrace, ...]:
    """Return the traces of some ranks of a run, in the order of `titles`, by rank.

    All show the time of the first one's median step, with `num_neighbours` steps on either side; ranks that did not run
    at the same time show a median step each.
    """
    by_rank = {trace.rank: trace for trace in run.traces}
    chosen = [by_rank[rank] for rank in titles if rank in by_rank]
    zeros = _zeros(run, chosen)
    return _aligned(chosen, [titles[trace.rank] for trace in chosen], zeros, num_neighbours)


def pair_of_traces(ours: Trace, theirs: Trace, names: tuple[str, str], num_neighbours: int) -> tuple[ShownTrace, ...]:
    """Return A's and B's trace, each at its median step, aligned where these begin."""
    traces = (ours, theirs)
    titles = [f"{side} · {name} · rank {trace.rank}" for trace, side, name in zip(traces, "AB", names, strict=True)]
    return _aligned(traces, titles, list(map(_begin_of_median, traces)), num_neighbours, sides=("A", "B"))


def _aligned(
    traces: Sequence[Trace],
    titles: Sequence[str],
    zeros: Sequence[int],
    num_neighbours: int,
    sides: Sequence[str] | None = None,
) -> tuple[ShownTrace, ...]:
    """Return the traces with the window, the same on all, in which their steps at time zero ran."""
    shown = [_step_at(trace, zero) for trace, zero in zip(traces, zeros, strict=True)]
    extents = [_extent(trace, step, num_neighbours) for trace, step in zip(traces, shown, strict=True)]
    start_ns = min(start - zero for (start, _), zero in zip(extents, zeros, strict=True))
    end_ns = max(end - zero for (_, end), zero in zip(extents, zeros, strict=True))
    return tuple(
        ShownTrace(trace, title, step, zero, start_ns, end_ns, side)
        for trace, title, step, zero, side in zip(
            traces, titles, shown, zeros, sides or [""] * len(traces), strict=True
        )
    )


def _zeros(run: Run, traces: Sequence[Trace]) -> list[int]:
    """Return when the first trace's median step begins, in the time of each trace; each its own if they ran apart."""
    zero_ns = _begin_of_median(traces[0])
    if len(traces) == 1:
        return [zero_ns]
    together = Run(run.path, tuple(sorted(traces, key=lambda trace: trace.rank)))
    if not job_of(together).is_concurrent:
        return list(map(_begin_of_median, traces))
    offset = dict(zip(together.ranks, common_clock(together).offset.tolist(), strict=True))
    return [zero_ns + offset[traces[0].rank] - offset[trace.rank] for trace in traces]


def _begin_of_median(trace: Trace) -> int:
    return int(steps(trace).window[median_step(trace), 0])


def _step_at(trace: Trace, zero_ns: int) -> int:
    """Return the index of the step whose window begins nearest to a time."""
    return int(np.argmin(np.abs(steps(trace).window[:, 0] - zero_ns)))


def _extent(trace: Trace, step: int, num_neighbours: int) -> tuple[int, int]:
    """Return from when to when a step and its neighbours of one profiler session take, on host or device."""
    all_steps = steps(trace)
    session = np.cumsum(all_steps.begins_session)
    of_session = np.flatnonzero(session == session[step])
    first, last = max(step - num_neighbours, of_session[0]), min(step + num_neighbours, of_session[-1])
    start = min(int(all_steps.host[first, 0]), int(all_steps.window[first, 0]))
    return start, max(int(all_steps.host[last, 1]), int(all_steps.window[last, 1]))


def shown_ranks(sheet: Sheet) -> dict[int, str]:
    """Return the ranks that matter, each with its title, the slowest first; all of up to three.

    The slowest waits least for others in collectives; without collectives it is the one with the longest step.
    """
    ranks = sheet.source.ranks
    if len(ranks) < 2:
        return {rank: f"rank {rank}" for rank in ranks}
    order, words = _by_waits(sheet)
    if len(order) != len(ranks):
        return {rank: f"rank {rank}" for rank in ranks[:3]}
    chosen = dict.fromkeys((order[0], order[len(order) // 2], order[-1]))
    titles = dict(zip((order[0], order[-1]), words, strict=True))
    return {rank: f"rank {rank} · {titles.get(rank, 'median')}" for rank in chosen}


def _by_waits(sheet: Sheet) -> tuple[list[int], tuple[str, str]]:
    """Return the ranks, the slowest first, and what to call the first and the last."""
    rows = [
        dict(zip((column.key for column in table.columns), row, strict=True))
        for report in sheet.reports
        if report.name == "ranks"
        for table in report.tables
        if table.key == "ranks"
        for row in table.rows
    ]
    if rows and all(row["wait_ns"] is not None for row in rows):
        return _ordered(rows, "wait_ns", 1), ("slowest: waits least for others", "fastest: waits most for others")
    return _ordered(rows, "step_ns", -1), ("slowest: longest step", "fastest: shortest step")


def _ordered(rows: Sequence[Mapping[str, Cell]], key: str, sign: int) -> list[int]:
    """Return the ranks of the rows by a column, ascending for sign 1."""
    return [int(row["rank"] or 0) for row in sorted(rows, key=lambda row: sign * float(row[key] or 0))]
