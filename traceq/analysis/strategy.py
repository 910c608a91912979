"""How do the ranks share the work, and did they issue exactly the collectives that this takes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._rank_rows import each_of
from traceq.claims.claim import Basis, Claim, Subject, measured
from traceq.claims.limits import LOST
from traceq.facts.comm.collective_roles import Role
from traceq.facts.comm.parallelism import issued_calls, strategy_of
from traceq.facts.comm.predictions import EXACT, EXPLAINED, UNEXPLAINED, Check, checks, micro_batches, unit_forwards
from traceq.facts.events.unrecorded_work import missing_ops_share
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.unrecorded_share import share_inside_steps
from traceq.facts.sentences import NO_COLLECTIVE
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, name_ranks

_BACKWARD = "backward"
_BEST_FIRST = (EXACT, EXPLAINED, UNEXPLAINED)


@frozen
class StrategyRow:
    """The strategy and the worst verdict of its checks; numbers are per step."""

    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    strategy: str = column("strategy")
    rule: str = column("rule")
    num_steps: int = column("steps", Unit.COUNT)
    num_micro_batches: int | None = column("micro-batches", Unit.COUNT, is_per_step=True)
    num_units: int | None = column("units", Unit.COUNT)
    num_kept: int | None = column("units kept for backward", Unit.COUNT)
    parameters: int | None = column("parameters", Unit.COUNT)
    """Elements reduced or gathered per pass."""
    verdict: str = column("verdict")
    """`exact`, `explained`, `unexplained`."""
    reason: str = column("reason")


@frozen
class CheckRow:
    """Calls for one role over all steps, against those predicted."""

    key: str = column("key", is_hidden=True)
    rank: int = column("rank", Unit.COUNT, is_hidden=True)
    role: str = column("role")
    num: int = column("calls", Unit.COUNT)
    expected_num: int | None = column("predicted", Unit.COUNT)
    elements: int | None = column("elements", Unit.COUNT)
    expected_elements: int | None = column("predicted", Unit.COUNT)
    verdict: str = column("verdict")
    """`exact`, `explained`, `unexplained`."""
    reason: str = column("reason")


@frozen
class _Rank:
    """One rank's strategy and its checks."""

    row: StrategyRow
    checks: tuple[Check, ...]
    unrecorded_share: float
    is_sample: bool

    @property
    def check_rows(self) -> list[CheckRow]:
        """A row for each check."""
        rank = self.row.rank
        return [
            CheckRow(
                key=f"rank {rank}|{number}|{check.role}",
                rank=rank,
                role=check.role,
                num=check.num,
                expected_num=check.expected_num,
                elements=check.elements,
                expected_elements=check.expected_elements,
                verdict=check.verdict,
                reason=check.reason,
            )
            for number, check in enumerate(self.checks)
        ]


def summarize(trace: Trace) -> _Rank:
    """Return the rank's strategy, and each role's calls and elements over all its steps against the prediction."""
    issued, (name, rule), rank_checks = issued_calls(trace), strategy_of(trace), checks(trace)
    num_passes = int(micro_batches(trace).max(initial=1))
    num_units = int(unit_forwards(trace).max(initial=0)) // num_passes or None
    regathered = issued.per_step(issued.of(Role.GATHER_BACKWARD)).num
    num_kept = None if num_units is None else num_units - int(regathered.max(initial=0)) // num_passes
    verdict = max((check.verdict for check in rank_checks), key=_BEST_FIRST.index, default=EXACT)
    reasons = (f"{check.role}: {check.reason}" for check in rank_checks if check.reason and check.verdict == verdict)
    row = StrategyRow(
        key=f"rank {trace.rank}",
        rank=trace.rank,
        strategy=name,
        rule=rule,
        num_steps=issued.num_steps,
        num_micro_batches=num_passes if rank_checks else None,
        num_units=num_units,
        num_kept=num_kept,
        parameters=_parameters(trace) if rank_checks else None,
        verdict=verdict,
        reason="; ".join(reasons),
    )
    return _Rank(row, rank_checks, share_inside_steps(trace), missing_ops_share(trace) > 0)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the strategies and checks of all ranks; people see the first rank of the worst verdict."""
    tables = (
        Table.of("strategy", "Strategy", StrategyRow, each_of(parts, lambda part: (part.row,))),
        Table.of(
            "strategy_checks", "What the strategy predicts", CheckRow, each_of(parts, lambda part: part.check_rows)
        ),
    )
    checked = [part for part in parts if part.checks]
    is_marked = bool(job.ranks) and job.ranks[0].steps.marked
    findings = (*_findings(checked, is_marked=is_marked), *_ranks_alone(job, parts))
    return Report("strategy", tables, (_view(checked),) if checked else (), findings)


def _parameters(trace: Trace) -> int | None:
    """Return the elements that one pass reduces or gathers: the parameters, padding included."""
    issued = issued_calls(trace)
    for role in (Role.GATHER_FORWARD, Role.GATHER_STEP, Role.GRADIENT):
        sums = issued.per_step(issued.of(role))
        if sums and (sums.elements >= 0).all():
            num_passes = micro_batches(trace) if role == Role.GATHER_FORWARD else 1
            return int(np.max(sums.elements // num_passes)) or None
    return None


def _view(parts: Sequence[_Rank]) -> Table:
    """Return the checks of the first rank of the worst verdict; most ranks have the same."""
    worst = max(parts, key=lambda part: _BEST_FIRST.index(part.row.verdict))
    row = worst.row
    num_same = sum((part.row.strategy, part.checks) == (row.strategy, worst.checks) for part in parts)
    same_on = "" if num_same == len(parts) else sentences.SAME_ON
    same_on = same_on.format(rank=row.rank, num=num_same, num_ranks=len(parts))
    facts = (
        (row.num_units, "units"),
        (row.num_kept, "kept for backward"),
        (row.parameters, "parameters with padding" if row.num_units else "parameters"),
    )
    note = "; ".join(filter(None, [row.rule, ", ".join(f"{value:,} {name}" for value, name in facts if value)]))
    rows = [replace(check, role=check.role.replace("_", " ")) for check in worst.check_rows]
    steps = f"{row.num_steps} steps" if row.num_steps > 1 else "1 step"
    title = sentences.STRATEGY.format(strategy=row.strategy, verdict=row.verdict, steps=steps, ranks=same_on)
    return Table.of("strategy", title, CheckRow, rows, note=f"{note}.").visible


def _findings(parts: Sequence[_Rank], *, is_marked: bool) -> Iterator[Claim]:
    """Yield one claim on all ranks that issue calls which their strategy does not predict; none on samples."""
    unexplained = [part for part in parts if part.row.verdict == UNEXPLAINED and not part.is_sample]
    if not unexplained:
        return
    first, row = unexplained[0], unexplained[0].row
    wrong = next(check for check in first.checks if check.verdict == UNEXPLAINED)
    of_elements = wrong.expected_elements is not None and wrong.elements not in (None, wrong.expected_elements)
    of_calls = not of_elements and wrong.expected_num not in (None, wrong.num)
    measures = measured(
        ranks=name_ranks([part.row.rank for part in unexplained]),
        strategy=row.strategy,
        role=wrong.role.replace("_", " "),
        num_elements=wrong.elements if of_elements else None,
        num_expected_elements=wrong.expected_elements if of_elements else None,
        num_calls=wrong.num if of_calls else None,
        num_expected_calls=wrong.expected_num if of_calls else None,
        reason=wrong.reason,
        lost_pct=100 * first.unrecorded_share if first.unrecorded_share >= LOST else None,
    )
    yield Claim("strategy", 0, Subject(rank=row.rank, key=row.key), measures, basis=Basis(row.num_steps * is_marked))


def _ranks_alone(job: Job, parts: Sequence[_Rank]) -> Iterator[Claim]:
    """Yield a claim on recorded ranks of a job that train, and exchange nothing in any traced step."""
    if job.timings is None or _BACKWARD not in job.timings.phases or len(parts) < 2:
        return
    if all(part.row.rule == NO_COLLECTIVE and not part.is_sample for part in parts):
        yield Claim("ranks_alone", measures=measured(num_ranks=len(parts)))
