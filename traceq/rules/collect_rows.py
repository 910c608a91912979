"""Rows that a rule is about, on each rank; a rule that a trace cannot answer is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from traceq.analysis.efficiency import COVERED_PCT
from traceq.errors import Unanswerable, UnreadableInput
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import BEFORE_WINDOW, OTHER
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Run
from traceq.report import Cell, Report
from traceq.rules.metrics import METRICS, Measure, Needs
from traceq.rules.parse import Rule, closest_name
from traceq.rules.sentences import UNANSWERED

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
    needs = METRICS[rule.metric].needs
    phase = f" in {rule.phase}" if rule.phase else ""
    if needs is Needs.DEVICE and not rank_rows.has_device:
        raise rank_rows.refuse("use_scalar" if rule.metric in _WAITS else "no_device_work", phase=phase)
    if needs is Needs.CPU_ONLY and rank_rows.has_device:
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
