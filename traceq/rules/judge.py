"""Does a rule hold on every rank, and if not, what broke it?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean, median

from traceq.analyses.registry import analyze
from traceq.errors import TraceqError, UnreadableInput
from traceq.links.phases import BEFORE_WINDOW
from traceq.model import Run
from traceq.report import Cell
from traceq.rules.metrics import METRICS, Measure, Needs
from traceq.rules.parse import STATISTICS, Rule, near

__all__ = ["Breach", "Cause", "Outcome", "judge"]

_TOP = 3
_WAITS = ("dtoh", "htod", "stream", "event", "device")

Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Cause:
    """What a part of a value comes from: an op and its line, a collective, a kernel, a cell of the partition."""

    name: str
    value: Fraction


@dataclass(frozen=True, slots=True)
class Breach:
    """A rank on which a rule does not hold; `causes` the largest first, none where the value is too small."""

    rank: int
    value: Fraction
    causes: tuple[Cause, ...]
    num_more_causes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rule, and the ranks that break it, the worst first."""

    rule: Rule
    breaches: tuple[Breach, ...]

    @property
    def holds(self) -> bool:
        """True where no rank breaks the rule."""
        return not self.breaches


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Rows of one rank, by table."""

    where: str
    rank: int
    tables: Mapping[str, Sequence[Row]]

    @property
    def has_device(self) -> bool:
        return any(row["num_gpu_ops"] for row in self.tables["phases"])

    @property
    def windows(self) -> dict[int, int]:
        """Window ns of each step by its index."""
        return {_int(row, "index"): _int(row, "window_ns") for row in self.tables["steps"]}

    @property
    def counted(self) -> dict[int, int]:
        """Window ns of the steps that statistics are taken over: all whole ones, or all where none is whole."""
        whole = {_int(row, "index") for row in self.tables["steps"] if not row["partial"]}
        return {index: ns for index, ns in self.windows.items() if index in whole or not whole}

    def refuse(self, rule: Rule, reason: str) -> TraceqError:
        """The fault of a rule that this rank cannot answer."""
        reason = " ".join(reason.split())  # names in a trace are anybody's: no line breaks
        return TraceqError(f"{self.where}: rank {self.rank}: cannot answer '{rule.text}': {reason}")


def judge(run: Run, rules: Sequence[Rule]) -> tuple[Outcome, ...]:
    """What each rule comes to on the ranks of a run. Raises TraceqError where a rank cannot answer a rule."""
    if not run.traces:
        raise UnreadableInput(run.path, "no traces", "a trace of each rank")
    names = sorted({"phases", "steps", *(METRICS[rule.metric].table for rule in rules)})
    tables = {name: _rows(run, name) for name in names}
    ranks = [
        _Evidence(run.path, rank, {name: [row for row in rows if row["rank"] == rank] for name, rows in tables.items()})
        for rank in run.ranks
    ]
    return tuple(_outcome(rule, ranks) for rule in rules)


def _rows(run: Run, name: str) -> list[Row]:
    table = next(table for table in analyze(run, name).tables if table.key == name)
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, cells, strict=True)) for cells in table.rows]


def _outcome(rule: Rule, ranks: Sequence[_Evidence]) -> Outcome:
    breaches = []
    for evidence in ranks:
        rows = _selected(rule, evidence)
        value = _value(rule, evidence, rows)
        if not rule.holds(value):
            causes = _causes(rule, evidence, rows) if value > rule.bound else []
            breaches.append(Breach(evidence.rank, value, tuple(causes[:_TOP]), len(causes[_TOP:])))
    return Outcome(rule, tuple(sorted(breaches, key=lambda breach: -abs(breach.value - rule.bound))))


def _selected(rule: Rule, evidence: _Evidence) -> list[Row]:
    """Rows of one rank that a rule is about. Raises TraceqError where their absence would mean nothing."""
    metric = METRICS[rule.metric]
    _refuse_wrong_device(rule, evidence)
    if metric.table == "collectives":
        _refuse_missing_calls(rule, evidence)
    rows = [row for row in evidence.tables[metric.table] if not metric.key or row[metric.key] in metric.values]
    if rule.phase:
        named = _phases_named(rule, evidence)
        rows = [row for row in rows if row[metric.phase_key] in named]
    if rule.measure is Measure.BYTES and any(row["num"] and row["bytes"] is None for row in rows):
        raise evidence.refuse(rule, f"the trace does not tell the sizes of its {rule.metric} calls")
    return rows


def _refuse_wrong_device(rule: Rule, evidence: _Evidence) -> None:
    """Without this every count of waits in a trace without a device would be 0, and pass."""
    needs = METRICS[rule.metric].needs
    phase = f" in {rule.phase}" if rule.phase else ""
    if needs is Needs.DEVICE and not evidence.has_device:
        instead = (
            f"; use 'scalar{phase} == 0', which counts the reads that wait on a device" if rule.metric in _WAITS else ""
        )
        raise evidence.refuse(rule, f"the trace has no device work{instead}")
    if needs is Needs.CPU_ONLY and evidence.has_device:
        instead = f"; use 'dtoh{phase} == 0'" if rule.metric == "scalar" else ""
        raise evidence.refuse(rule, f"{rule.metric} is told only by a trace without device work{instead}")


def _refuse_missing_calls(rule: Rule, evidence: _Evidence) -> None:
    """Kernels launched inside the trace without a single call: the trace does not record calls."""
    rows = evidence.tables["collectives"]
    num_kernels = sum(_int(row, "num_kernels") for row in rows if row["phase"] != BEFORE_WINDOW)
    if num_kernels and not any(row["num"] for row in rows):
        raise evidence.refuse(rule, f"the trace has {num_kernels:,} kernels of collectives and no calls to count")


def _phases_named(rule: Rule, evidence: _Evidence) -> set[str]:
    """Phases called exactly so, else those called so without decoration: `forward` is `## forward ##`."""
    names = [str(row["name"]) for row in evidence.tables["phases"]]
    found = {name for name in names if name == rule.phase}
    found = found or {name for name in names if _bare(name) == _bare(rule.phase)}
    if not found:
        close = near(_bare(rule.phase), map(_bare, names))
        hint = f"; did you mean '{close}'?" if close else ";"
        raise evidence.refuse(rule, f"no phase '{rule.phase}'{hint} the phases are {', '.join(names)}")
    return found


def _bare(name: str) -> str:
    return re.sub(r"^\W+|\W+$", "", name) or name


def _value(rule: Rule, evidence: _Evidence, rows: Sequence[Row]) -> Fraction:
    """Sum of the rows, or a statistic over the counted steps; exact."""
    metric = METRICS[rule.metric]
    if metric.by_step:
        return _over_steps(rule, evidence.counted, rows)
    total = sum(_int(row, metric.columns[rule.measure]) for row in rows if row[metric.columns[rule.measure]])
    if rule.measure is Measure.SHARE:
        return Fraction(total, sum(evidence.windows.values()))
    return Fraction(total, len(evidence.windows) if rule.per_step or rule.measure is Measure.NS else 1)


def _over_steps(rule: Rule, windows: Mapping[int, int], rows: Sequence[Row]) -> Fraction:
    """Time of the rows in each step, then the statistic; a mean share is the share of all steps together."""
    ns = dict.fromkeys(windows, 0)
    for row in rows:
        if row["step"] in ns:
            ns[_int(row, "step")] += _int(row, "ns")
    if rule.measure is Measure.SHARE and rule.statistic == "mean":
        return Fraction(sum(ns.values()), sum(windows.values()))
    whole = windows if rule.measure is Measure.SHARE else dict.fromkeys(windows, 1)
    return _STATISTICS[rule.statistic](sorted(Fraction(ns[index], whole[index]) for index in windows))


def _p95(values: Sequence[Fraction]) -> Fraction:
    """Nearest rank of sorted values, which is their maximum where there are fewer than 20."""
    return values[-(-95 * len(values) // 100) - 1]


_STATISTICS: Mapping[str, Callable[[Sequence[Fraction]], Fraction]] = {
    "mean": mean,
    "median": median,
    "p95": _p95,
    "max": max,
    "min": min,
}
assert tuple(_STATISTICS) == STATISTICS


def _causes(rule: Rule, evidence: _Evidence, rows: Sequence[Row]) -> list[Cause]:
    """Parts of a value by what they come from, the largest first; none where that only repeats the metric."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(_name(rule, row), []).append(row)
    causes = [Cause(name, _value(rule, evidence, same)) for name, same in by_name.items()]
    causes = sorted((cause for cause in causes if cause.value), key=lambda cause: (-cause.value, cause.name))
    return [] if [cause.name for cause in causes] == [rule.metric] else causes


def _name(rule: Rule, row: Row) -> str:
    """What a row is, in the words of its table."""
    metric = METRICS[rule.metric]
    match metric.table:
        case "syncs":
            name = f"{row['op'] or row['call']}" + (f" at {row['line']}" if row["line"] else "")
        case "collectives":
            name = f"{row['name']} {row['dtype']}".rstrip()
        case "memcpy":
            name = f"{row['kind']}_copies".lower().replace(" ", "_")
        case "kernels":
            name = str(row["name"])
        case "partition":
            name = str(row["category"])
        case _:
            name = rule.metric
    return f"{name} in {row[metric.phase_key]}" if metric.phase_key and not rule.phase else name


def _int(row: Row, key: str) -> int:
    value = row[key]
    assert isinstance(value, int)
    return value
