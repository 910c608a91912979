"""How do the ranks share the work, and did they issue just what that takes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.facts.comm.collective_roles import Role
from traceq.facts.comm.parallelism import issues, strategy_of
from traceq.facts.comm.predictions import EXACT, EXPLAINED, UNEXPLAINED, Check, checks, micro_batches, units
from traceq.facts.ranks.job import Job
from traceq.model import Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit

POSITION = 52

_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("strategy", "strategy"),
    Column("rule", "rule"),
    Column("num_steps", "steps", Unit.COUNT),
    Column("num_micro_batches", "micro-batches a step", Unit.COUNT),
    Column("num_units", "units", Unit.COUNT),
    Column("num_kept", "units kept for backward", Unit.COUNT),
    Column("parameters", "parameters", Unit.COUNT),
    Column("verdict", "verdict"),
    Column("reason", "reason"),
)
_CHECK_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("role", "for"),
    Column("num", "calls", Unit.COUNT),
    Column("expected_num", "predicted", Unit.COUNT),
    Column("elements", "elements", Unit.COUNT),
    Column("expected_elements", "predicted", Unit.COUNT),
    Column("verdict", "verdict"),
    Column("reason", "reason"),
)
_WORST = (EXACT, EXPLAINED, UNEXPLAINED)


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's strategy and its checks; the numbers are of one step, None where the trace does not tell."""

    rank: int
    strategy: str
    rule: str
    num_steps: int
    num_micro_batches: int | None
    num_units: int | None
    num_kept: int | None
    parameters: int | None
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str:
        """The worst of the checks."""
        return max((check.verdict for check in self.checks), key=_WORST.index, default=EXACT)

    @property
    def reason(self) -> str:
        """Why it is no better than that."""
        return "; ".join(f"{c.role}: {c.reason}" for c in self.checks if c.reason and c.verdict == self.verdict)

    @property
    def cells(self) -> tuple[Cell, ...]:
        numbers = (self.num_steps, self.num_micro_batches, self.num_units, self.num_kept, self.parameters)
        return (f"rank {self.rank}", self.rank, self.strategy, self.rule, *numbers, self.verdict, self.reason)

    @property
    def check_cells(self) -> tuple[tuple[Cell, ...], ...]:
        return tuple(
            (
                f"rank {self.rank}|{number}|{check.role}",
                self.rank,
                check.role,
                check.num,
                check.expected_num,
                check.elements,
                check.expected_elements,
                check.verdict,
                check.reason,
            )
            for number, check in enumerate(self.checks)
        )


def merge(job: Job, ranks: Sequence[_Rank]) -> Report:
    """The strategies and checks of all ranks; people see the first of the worst."""
    summary = Table("strategy", "Strategy", _COLUMNS, tuple(rank.cells for rank in ranks))
    rows = tuple(row for rank in ranks for row in rank.check_cells)
    checked = Table("strategy_checks", "What the strategy predicts", _CHECK_COLUMNS, rows)
    told = [rank for rank in ranks if rank.checks]
    return Report("strategy", (summary, checked), (_view(told),) if told else (), tuple(_findings(told)))


def summarize(trace: Trace) -> _Rank:
    """The strategy of a rank, and each role's calls and elements against what it predicts, over all its steps."""
    found, (name, rule) = issues(trace), strategy_of(trace)
    checked = checks(trace)
    passes, of_units = int(micro_batches(trace).max(initial=1)), units(trace)
    num_units = int(of_units.max(initial=0)) // passes or None
    again = found.per_step(found.of(Role.GATHER_BACKWARD)).num
    kept = None if num_units is None else num_units - int(again.max(initial=0)) // passes
    return _Rank(
        trace.rank,
        name,
        rule,
        found.num_steps,
        passes if checked else None,
        num_units,
        kept,
        _parameters(trace) if checked else None,
        checked,
    )


def _parameters(trace: Trace) -> int | None:
    """Elements that one pass reduces or gathers: the parameters, padding included."""
    found = issues(trace)
    for role in (Role.GATHER_FORWARD, Role.GATHER_STEP, Role.GRADIENT):
        summed = found.per_step(found.of(role))
        if summed and (summed.elements >= 0).all():
            passes = micro_batches(trace) if role == Role.GATHER_FORWARD else 1
            return int(np.max(summed.elements // passes)) or None
    return None


def _view(ranks: Sequence[_Rank]) -> Table:
    """The checks of the first rank of the worst verdict; its neighbours mostly say the same."""
    shown = max(ranks, key=lambda rank: _WORST.index(rank.verdict))
    same = [rank for rank in ranks if (rank.strategy, rank.checks) == (shown.strategy, shown.checks)]
    of_ranks = "" if len(same) == len(ranks) else f" (rank {shown.rank}; {len(same)} of {len(ranks)} ranks alike)"
    facts = (
        (shown.num_units, "units"),
        (shown.num_kept, "kept for backward"),
        (shown.parameters, "parameters with padding" if shown.num_units else "parameters"),
    )
    note = ", ".join(f"{value:,} {what}" for value, what in facts if value)
    rows = tuple(
        (check.role.replace("_", " "), *row[3:]) for check, row in zip(shown.checks, shown.check_cells, strict=True)
    )
    steps = f"{shown.num_steps} steps" if shown.num_steps > 1 else "1 step"
    title = f"Strategy: {shown.strategy}, {shown.verdict} over {steps}{of_ranks}"
    return Table("strategy", title, _CHECK_COLUMNS[2:], rows, note=f"{shown.rule}{'; ' if note else ''}{note}.")


def _findings(ranks: Sequence[_Rank]) -> list[Finding]:
    """One for all ranks that issue what their strategy does not predict."""
    off = [rank for rank in ranks if rank.verdict == UNEXPLAINED]
    if not off:
        return []
    who = f"rank {off[0].rank}" + (f" and {len(off) - 1} more" if len(off) > 1 else "")
    text = f"{who}: {off[0].strategy} does not predict all that was issued: {off[0].reason}"
    return [Finding("strategy", "medium", text, 0, f"rank {off[0].rank}")]
