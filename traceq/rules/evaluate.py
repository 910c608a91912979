"""Evaluation of rules: the rows that each is about, whether it holds on every rank, and what breaks it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction

import numpy as np

from traceq.analysis.efficiency import COVERED_PCT
from traceq.analysis.registry import reports_of
from traceq.claims.saying import text_of
from traceq.errors import Unanswerable, UnreadableInput
from traceq.facts.ranks.collective_matching import match_collectives
from traceq.facts.ranks.job import Job, job_of
from traceq.facts.ranks.job_collectives import JobCollectives, issued_by_flights
from traceq.facts.timeline.phases import BEFORE_WINDOW, OTHER
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Run
from traceq.report import Cell, Report
from traceq.rules.parse import METRICS, Measure, Rule, closest_name, over_steps
from traceq.rules.sentences import IDENTICAL, UNANSWERED
from traceq.short_texts import cut_end

_WAITS = ("dtoh", "htod", "stream", "event", "device")

TableRow = Mapping[str, Cell]


@frozen
class RankRows:
    """Rows of one rank, by table; each row maps the fields of its table to cells."""

    rank: int
    tables: Mapping[str, Sequence[TableRow]]

    @property
    def has_device(self) -> bool:
        """Whether the trace has device work."""
        return any(row["num_gpu_ops"] for row in self.tables["phases"])

    @property
    def windows(self) -> dict[int, int]:
        """Window of each step by its number, ns."""
        return {integer(row, "step"): integer(row, "window_ns") for row in self.tables["steps"]}

    @property
    def counted(self) -> dict[int, int]:
        """Windows of the steps that statistics are taken over, ns: all whole ones, or all where none is whole."""
        complete = {integer(row, "step") for row in self.tables["steps"] if not row["partial"]}
        return {step: ns for step, ns in self.windows.items() if step in complete or not complete}

    def refuse(self, why: str, **fields: object) -> Unanswerable:
        """Return the error of a rule that this rank cannot answer, by a key of UNANSWERED and its fields."""
        reason = UNANSWERED[why].format(**fields)
        return Unanswerable(f"rank {self.rank}: {' '.join(reason.split())}")  # names are untrusted: no line breaks


def missing_ranks(run: Run, path: Place) -> str:
    """Return why no rule can hold on a folder that lacks the trace of a rank: it may be broken there; else "".

    A single file is what its rank did.
    """
    if not path.is_dir():
        return ""
    world_size = max((trace.world_size for trace in run.traces), default=0)
    num_ranks = run.manifest.num_ranks_of(run.arm) if run.manifest else world_size
    num = len(run.traces)
    return UNANSWERED["lacks_ranks"].format(num=num, num_ranks=num_ranks) if num < num_ranks else ""


def analyses_for(rules: Sequence[Rule]) -> tuple[str, ...]:
    """Return the names of the analyses that the rules need."""
    return tuple(sorted({*_tables_for(rules), *("desync" for rule in rules if rule.metric not in METRICS)}))


def collect_rows(job: Job, reports: Sequence[Report], rules: Sequence[Rule]) -> tuple[RankRows, ...]:
    """Return the tables that the rules need, of each rank. Raises UnreadableInput for a job without traces."""
    if not job.ranks:
        raise UnreadableInput(job.path, "no traces", "a trace of each rank")
    rows: dict[int, dict[str, list[TableRow]]] = {rank.rank: {} for rank in job.ranks}
    wanted = _tables_for(rules)
    for table in (table for report in reports for table in report.tables if table.key in wanted):
        for of_rank in rows.values():
            of_rank[table.key] = []
        for row in table.to_dicts():
            rows[integer(row, "rank")][table.key].append(row)
    return tuple(RankRows(rank, tables) for rank, tables in rows.items())


def _tables_for(rules: Sequence[Rule]) -> set[str]:
    return {"phases", "steps", *(METRICS[rule.metric].table for rule in rules if rule.metric in METRICS)}


def select(rule: Rule, rank_rows: RankRows) -> list[TableRow]:
    """Return the rows of one rank that a rule is about. Raises Unanswerable where their absence would mean nothing."""
    metric = METRICS[rule.metric]
    _refuse_wrong_device(rule, rank_rows)
    if metric.table == "collectives":
        _refuse_missing_calls(rule, rank_rows)
    rows = [row for row in rank_rows.tables[metric.table] if not metric.key or row[metric.key] in metric.values]
    if rule.phase:
        phases = _phases_named(rule, rank_rows)
        rows = [row for row in rows if row[metric.phase_key] in phases]
    if rule.measure is Measure.BYTES and any(row["num"] and row["bytes"] is None for row in rows):
        raise rank_rows.refuse("no_sizes", metric=rule.metric)
    if rule.measure is Measure.SHARE and not all(rank_rows.windows.values()):
        raise rank_rows.refuse("no_length")
    return rows


def _refuse_wrong_device(rule: Rule, rank_rows: RankRows) -> None:
    """Raise Unanswerable for a metric that the trace cannot have: without it a count of 0 would pass."""
    on_device = METRICS[rule.metric].on_device
    phase = f" in {rule.phase}" if rule.phase else ""
    if on_device is True and not rank_rows.has_device:
        raise rank_rows.refuse("use_scalar" if rule.metric in _WAITS else "no_device_work", phase=phase)
    if on_device is False and rank_rows.has_device:
        why = "use_dtoh" if rule.metric == "scalar" else "device_work"
        raise rank_rows.refuse(why, metric=rule.metric, phase=phase)


def _refuse_missing_calls(rule: Rule, rank_rows: RankRows) -> None:
    """Raise Unanswerable where kernels were launched inside the trace without a single recorded call."""
    rows = rank_rows.tables["collectives"]
    num_kernels = sum(integer(row, "num_kernels") for row in rows if row["phase"] != BEFORE_WINDOW)
    if num_kernels and not any(row["num"] for row in rows):
        raise rank_rows.refuse("no_calls", num=num_kernels)


def _phases_named(rule: Rule, rank_rows: RankRows) -> set[str]:
    """Return the phases of exactly this name, else those of this name without decoration, as in `## forward ##`."""
    names = list(dict.fromkeys((*(str(row["name"]) for row in rank_rows.tables["phases"]), OTHER)))
    matching = {name for name in names if name == rule.phase}
    matching = matching or {name for name in names if _bare(name) == _bare(rule.phase)}
    if not matching:
        close = closest_name(_bare(rule.phase), map(_bare, names))
        why, listed = "misspelt_phase" if close else "no_phase", ", ".join(names)
        raise rank_rows.refuse(why, phase=rule.phase, close=close, names=listed)
    return matching


def _bare(name: str) -> str:
    return re.sub(r"^\W+|(?<!\W)\W+$", "", name) or name


def ratio(rule: Rule, rank_rows: RankRows, rows: Sequence[TableRow]) -> Fraction:
    """Return the share of 1 that the only row has. Raises Unanswerable where the trace leaves it open.

    A bound from above cannot prove that a share is large, nor FLOPs that are missing that it is small.
    """
    value, row = rows[0][METRICS[rule.metric].columns[rule.measure]], rows[0]
    if not isinstance(value, int | float):
        raise rank_rows.refuse("no_peaks" if row["model_flops"] else "no_shapes", device=row.get("device"))
    if rule.comparison not in ("<", "<=") and row["is_bound"]:
        raise rank_rows.refuse("at_most")
    modelled = row["modelled_pct"]
    if rule.comparison not in (">", ">=") and isinstance(modelled, int | float) and modelled < COVERED_PCT:
        raise rank_rows.refuse("at_least", modelled=modelled)
    return Fraction(value) / 100


def integer(row: TableRow, key: str) -> int:
    """Return a cell that is a whole number."""
    value = row[key]
    assert isinstance(value, int)
    return value


_TOP = 3
_LONGEST_NAME = 80


class State(StrEnum):
    """What a trace says of a rule."""

    HOLDS = "holds"
    BROKEN = "broken"
    CANNOT_TELL = "cannot tell"


@frozen
class Contribution:
    """Part of a value by its source: an op and its line, a collective, a kernel, or a category of the partition.

    `line` is `train.py:41 forward`, "" where not recorded.
    """

    name: str
    value: Fraction
    line: str = ""


@frozen
class RankValue:
    """Value on one rank; `causes` of a broken rule the largest first, none where the value is too small."""

    rank: int
    value: Fraction
    causes: tuple[Contribution, ...] = ()
    num_more_causes: int = 0


@frozen
class RuleOutcome:
    """Rule and the ranks that break it, the worst first; `mismatch`: where ranks differ, for the rule about all.

    `closest` is the rank that comes closest to breaking a rule that none breaks. `unanswered` says why the trace leaves
    open whether the rule holds on all ranks, "" where it does not; a rank that breaks it settles that.
    """

    rule: Rule
    breaches: tuple[RankValue, ...] = ()
    mismatch: str = ""
    closest: RankValue | None = None
    unanswered: str = ""

    @property
    def state(self) -> State:
        """Whether the rule holds on every rank."""
        if self.breaches or self.mismatch:
            return State.BROKEN
        return State.CANNOT_TELL if self.unanswered else State.HOLDS

    @property
    def holds(self) -> bool:
        """Whether no rank breaks the rule, and that is known of all."""
        return self.state is State.HOLDS

    @property
    def shown(self) -> RankValue | None:
        """The rank to show: that which breaks the rule most, or comes closest to it; None without a value."""
        return self.breaches[0] if self.breaches else self.closest


@frozen
class Checked:
    """Outcomes of rules on the ranks of one path."""

    path: str
    ranks: tuple[int, ...]
    outcomes: tuple[RuleOutcome, ...]


def judge_run(run: Run, rules: Sequence[Rule], missing: str = "") -> tuple[RuleOutcome, ...]:
    """Return the outcome of each rule on the ranks of a run. Raises UnreadableInput for a run without traces.

    `missing` is what `missing_ranks` says.
    """
    job = job_of(run)
    return judge(job, reports_of(job, run.traces, analyses_for(rules)), rules, missing)


def judge(job: Job, reports: Sequence[Report], rules: Sequence[Rule], missing: str = "") -> tuple[RuleOutcome, ...]:
    """Return the outcome of each rule by the reports of `analyses_for` the rules. Raises as `judge_run` does."""
    ranks = collect_rows(job, reports, rules)
    outcomes = (_mismatch(rule, job, reports) if rule.metric == IDENTICAL else _outcome(rule, ranks) for rule in rules)
    return tuple(replace(each, unanswered=missing) if missing and each.holds else each for each in outcomes)


def _mismatch(rule: Rule, job: Job, reports: Sequence[Report]) -> RuleOutcome:
    try:
        return RuleOutcome(rule, mismatch=_first_mismatch(job, reports))
    except Unanswerable as reason:
        return RuleOutcome(rule, unanswered=str(reason))


def _outcome(rule: Rule, ranks: Sequence[RankRows]) -> RuleOutcome:
    breaches, holding, unanswered = [], [], ""
    for rank_rows in ranks:
        try:
            rows = select(rule, rank_rows)
            value = _value(rule, rank_rows, rows)
        except Unanswerable as reason:
            unanswered = unanswered or str(reason)
            continue
        if rule.holds(value):
            holding.append(RankValue(rank_rows.rank, value))
            continue
        too_much = value >= rule.bound and rule.comparison not in (">", ">=")
        causes = _causes(rule, rank_rows, rows) if too_much else []
        breaches.append(RankValue(rank_rows.rank, value, tuple(causes[:_TOP]), len(causes[_TOP:])))

    def from_bound(each: RankValue) -> Fraction:
        return abs(each.value - rule.bound)

    breaches.sort(key=from_bound, reverse=True)
    return RuleOutcome(rule, tuple(breaches), closest=min(holding, key=from_bound, default=None), unanswered=unanswered)


def value_on(rule: Rule, rank_rows: RankRows) -> Fraction:
    """Return the value on one rank that a rule compares. Raises TraceqError where the rank cannot answer it."""
    return _value(rule, rank_rows, select(rule, rank_rows))


def _value(rule: Rule, rank_rows: RankRows, rows: Sequence[TableRow]) -> Fraction:
    """Return the sum of the rows, or a statistic over the counted steps; exact."""
    metric = METRICS[rule.metric]
    if metric.is_ratio:
        return ratio(rule, rank_rows, rows)
    if metric.by_step:
        windows = rank_rows.counted
        ns = dict.fromkeys(windows, 0)
        for row in rows:
            if row["step"] in ns:
                ns[integer(row, "step")] += integer(row, "dur_ns")
        return over_steps(rule.statistic, ns, windows, is_share=rule.measure is Measure.SHARE)
    total = sum(integer(row, metric.columns[rule.measure]) for row in rows if row[metric.columns[rule.measure]])
    if rule.measure is Measure.SHARE:
        return Fraction(total, sum(rank_rows.windows.values()))
    return Fraction(total, len(rank_rows.windows) if rule.per_step or rule.measure is Measure.NS else 1)


def _causes(rule: Rule, rank_rows: RankRows, rows: Sequence[TableRow]) -> list[Contribution]:
    """Return parts of a value by source, the largest first; none where that only repeats the metric."""
    by_name: dict[str, list[TableRow]] = {}
    for row in () if METRICS[rule.metric].is_ratio else rows:
        by_name.setdefault(_name(rule, row), []).append(row)
    causes = [
        Contribution(name, _value(rule, rank_rows, same), str(same[0].get("line", "")))
        for name, same in by_name.items()
    ]
    causes = sorted((cause for cause in causes if cause.value), key=lambda cause: (-cause.value, cause.name))
    return [] if [cause.name for cause in causes] == [rule.metric] else causes


def _name(rule: Rule, row: TableRow) -> str:
    """Return the name of the source of a row, as its table has it."""
    metric = METRICS[rule.metric]
    match metric.table:
        case "syncs":
            name = f"{row['op'] or row['call']}" + (f" at {row['line']}" if row["line"] else "")
        case "collectives":
            name = f"{row['name']} {row['dtype']}".rstrip()
        case "memcpy":
            name = f"{row['kind']}_copies".lower().replace(" ", "_")
        case "kernels":
            name = cut_end(str(row["name"]), _LONGEST_NAME)
        case "partition":
            name = str(row["category"])
        case _:
            name = rule.metric
    return f"{name} in {row[metric.phase_key]}" if metric.phase_key and not rule.phase else name


def _first_mismatch(job: Job, reports: Sequence[Report]) -> str:
    """Return the first place where ranks differ by the report on it, in words; "" where they do not.

    Raises Unanswerable where nothing can be compared: such a rule must not pass.
    """
    if len(job.ranks) < 2:
        raise Unanswerable(UNANSWERED["one_rank"].format(rank=job.ranks[0].rank))
    if not job.is_concurrent:
        raise Unanswerable(UNANSWERED["not_concurrent"])
    report = next(each for each in reports if each.name == "desync")
    if report.findings:
        return text_of(report.findings[0])
    if reasons := [caveat.text for caveat in report.caveats if caveat.code == "not_compared"]:
        raise Unanswerable(" ".join(reasons[0].split()))  # names are untrusted: no line breaks
    issued = job.issued
    if not (issued.groups and all(issued.groups)) and any(calls.has_messages for calls in job.calls):
        raise Unanswerable(UNANSWERED["unnamed_groups"])
    compared = _compared(issued) | _compared(issued_by_flights(job.flights))
    if alone := sorted({rank.rank for rank in job.ranks} - compared):
        numbers = ", ".join(map(str, alone[:8])) + (" and more" if len(alone) > 8 else "")
        raise Unanswerable(UNANSWERED["nothing_in_common"].format(s="s" * (len(alone) > 1), ranks=numbers))
    return ""


def _compared(issued: JobCollectives) -> set[int]:
    """Return the ranks with a collective that another rank issued as well."""
    if not len(issued):
        return set()
    is_issued = match_collectives(issued).call >= 0
    shared = is_issued & (is_issued.sum(axis=1) > 1)[:, None]
    return {issued.ranks[index] for index in np.flatnonzero(shared.any(axis=0)).tolist()}
