"""How long would a step be without its syncs, or without waiting for the data loader?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._parts import Part, of_all
from traceq.analysis._wording import a_step, stepwise, the_step
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.stalls.dependency_graph import dependency_graph
from traceq.facts.stalls.replay import lasts, replay_as_is, saved_a_step
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.blocking_calls import blocking_calls
from traceq.facts.timeline.steps import steps
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.report import Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 59

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("removed", "without"),
    Column("num", "num", Unit.COUNT),
    Column("blocked_ns", "blocks", Unit.NS),
    Column("saved_ns", "saves", Unit.NS),
    Column("step_ns", "left", Unit.NS),
)
_NOTHING, _ALL, _LOADER = "nothing", "all syncs", "data loader"

_SHOWN = 0.005
"""Part of a step that something must give back for people to see the table."""
_SHORT = 0.01
"""Part of a step that replay cannot explain, or that it adds, from which people are told."""
_WORTH, _FAR_MORE = 0.02, 1.5
"""Part of a step, and times the sum of what the kinds save one by one, from which the sum of all is worth a word."""

_Row = tuple[int, str, int, int, int, int]
"""(rank, what is removed, how many in the trace, and of a step: ns of host time that go, ns saved, ns left)."""


def summarize(trace: Trace) -> Part[_Row]:
    """Step times by replay, mean over the counted steps; `nothing` removed shows how well replay knows the trace."""
    return Part(tuple(_rows(trace)))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks; people see the slowest of those on which something gives time back."""
    table = Table("replay", "Replay", _COLUMNS, of_all(parts))
    ranks = [(rank, part.rows) for rank, part in zip(job.ranks, parts, strict=True)]
    telling = [(rank, rows) for rank, rows in ranks if any(row[4] >= _SHOWN * _step(rows) for row in rows[1:])]
    if not telling:
        return Report("replay", (table,))
    rank, slowest = max(telling, key=lambda each: _step(each[1]))
    return Report("replay", (table,), (_view(job, rank, slowest),), tuple(_findings(job, slowest)))


def _step(rows: Sequence[_Row]) -> int:
    """Observed ns of a step."""
    return rows[0][4] + rows[0][5]


def _rows(trace: Trace) -> list[_Row]:
    holds, counted = dependency_graph(trace).holds, steps(trace).counted
    step_ns, short_ns = _mean(lasts(trace)[counted]), _mean(replay_as_is(trace)[counted])
    in_steps = span_index(steps(trace).host[counted], holds.start) >= 0
    rows: list[_Row] = [(trace.rank, _NOTHING, 0, 0, short_ns, step_ns - short_ns)]
    cases = _cases(trace)
    if cases:
        removed = np.array([chosen for _, chosen in cases])
        for (name, chosen), saved_ns in zip(cases, saved_a_step(trace, removed).tolist(), strict=True):
            blocked_ns = round(int(holds.saves[chosen & in_steps].sum()) / int(counted.sum()))
            rows.append((trace.rank, name, int(chosen.sum()), blocked_ns, saved_ns, step_ns - saved_ns))
    return rows


def _cases(trace: Trace) -> list[tuple[str, NDArray[np.bool_]]]:
    """What is removed together: (name, which of the graph's holds): each kind of sync, all of them, the loader."""
    calls, holds = blocking_calls(trace), dependency_graph(trace).holds
    kind = np.where(holds.call >= 0, calls.kind[holds.call] if len(calls) else -1, -1)
    kinds = [(f"{name} syncs", kind == code) for code, name in enumerate(SYNC_KINDS) if (kind == code).any()]
    together = [(_ALL, kind >= 0)] if len(kinds) > 1 else []
    loader = [(_LOADER, kind < 0)] if (kind < 0).any() else []
    return [*kinds, *together, *loader]


def _findings(job: Job, rows: Sequence[_Row]) -> list[Finding]:
    """Syncs that only give time back together: without one of them the host waits for the same work in the next."""
    saved = {row[1]: row[4] for row in rows[1:]}
    alone = sum(saved_ns for name, saved_ns in saved.items() if name not in (_ALL, _LOADER))
    together = saved.get(_ALL, 0)
    if together < _WORTH * _step(rows) or together < _FAR_MORE * alone:
        return []
    all_ns, alone_ns = format_value(together, Unit.NS), format_value(alone, Unit.NS)
    step = the_step(job.ranks[0].steps)
    text = (
        f"without all its syncs {step} is {all_ns} shorter (replay), kind by kind only {alone_ns}: each "
        "hides behind the next"
    )
    return [Finding("joint_syncs", "medium", text, together)]


def _mean(ns: NDArray[np.int64]) -> int:
    return round(float(ns.mean()))


def _view(job: Job, rank: Outline, rows: Sequence[_Row]) -> Table:
    on = f" (rank {rank.rank}, the slowest)" if len(job.ranks) > 1 else ""
    title, shown = f"{a_step(rank.steps).capitalize()} without its waits{on}", tuple(row[1:] for row in rows[1:])
    return Table("replay", title, stepwise(_COLUMNS[1:], job), shown, note=_note(rank, rows))


def _note(rank: Outline, rows: Sequence[_Row]) -> str:
    """How far the replay can be believed, and where it counts a step longer than the other tables."""
    whole_ns, got_ns = _step(rows), rows[0][5]
    window = rank.steps.window[rank.steps.counted]
    whole, got = format_value(whole_ns, Unit.NS), format_value(got_ns, Unit.NS)
    if whole_ns - got_ns >= _SHORT * whole_ns:
        return f"Replay explains {got} of {whole}."
    if whole_ns - float(np.diff(window).mean()) >= _SHORT * whole_ns:
        return f"Until all that was launched in {the_step(rank.steps)} is done, which takes {whole}."
    return ""
