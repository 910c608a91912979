"""Evaluation of rules: whether each holds on every rank, and what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean, median

from traceq.model import Run
from traceq.rules.evidence import Evidence, EvidenceRow, gather, integer, select
from traceq.rules.identical import IDENTICAL, first_mismatch
from traceq.rules.metrics import METRICS, Measure
from traceq.rules.parse import STATISTICS, Rule

__all__ = ["Breach", "Contribution", "RuleOutcome", "judge"]

_TOP = 3
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Contribution:
    """Part of a value by its source: an op and its line, a collective, a kernel, or a category of the partition."""

    name: str
    value: Fraction


@dataclass(frozen=True, slots=True)
class Breach:
    """Rank on which a rule does not hold; `causes` the largest first, none where the value is too small."""

    rank: int
    value: Fraction
    causes: tuple[Contribution, ...]
    num_more_causes: int


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Rule and the ranks that break it, the worst first; `mismatch`: where ranks differ, for the rule about all."""

    rule: Rule
    breaches: tuple[Breach, ...]
    mismatch: str = ""

    @property
    def holds(self) -> bool:
        """Whether no rank breaks the rule."""
        return not self.breaches and not self.mismatch


def judge(run: Run, rules: Sequence[Rule]) -> tuple[RuleOutcome, ...]:
    """Return the outcome of each rule on the ranks of a run. Raises TraceqError where a rank cannot answer a rule."""
    ranks = gather(run, rules)
    return tuple(
        RuleOutcome(rule, (), first_mismatch(run)) if rule.metric == IDENTICAL else _outcome(rule, ranks)
        for rule in rules
    )


def _outcome(rule: Rule, ranks: Sequence[Evidence]) -> RuleOutcome:
    breaches = []
    for evidence in ranks:
        rows = select(rule, evidence)
        value = _value(rule, evidence, rows)
        if not rule.holds(value):
            too_much = value >= rule.bound and rule.comparison not in (">", ">=")
            causes = _causes(rule, evidence, rows) if too_much else []
            breaches.append(Breach(evidence.rank, value, tuple(causes[:_TOP]), len(causes[_TOP:])))
    return RuleOutcome(rule, tuple(sorted(breaches, key=lambda breach: -abs(breach.value - rule.bound))))


def _value(rule: Rule, evidence: Evidence, rows: Sequence[EvidenceRow]) -> Fraction:
    """Return the sum of the rows, or a statistic over the counted steps; exact."""
    metric = METRICS[rule.metric]
    if metric.by_step:
        return _over_steps(rule, evidence.counted, rows)
    total = sum(integer(row, metric.columns[rule.measure]) for row in rows if row[metric.columns[rule.measure]])
    if rule.measure is Measure.SHARE:
        return Fraction(total, sum(evidence.windows.values()))
    return Fraction(total, len(evidence.windows) if rule.per_step or rule.measure is Measure.NS else 1)


def _over_steps(rule: Rule, windows: Mapping[int, int], rows: Sequence[EvidenceRow]) -> Fraction:
    """Return a statistic of the time of the rows in each step; a mean share is the share of all steps together."""
    ns = dict.fromkeys(windows, 0)
    for row in rows:
        if row["step"] in ns:
            ns[integer(row, "step")] += integer(row, "ns")
    if rule.measure is Measure.SHARE and rule.statistic == "mean":
        return Fraction(sum(ns.values()), sum(windows.values()))
    divisors = windows if rule.measure is Measure.SHARE else dict.fromkeys(windows, 1)
    return _STATISTICS[rule.statistic](sorted(Fraction(ns[index], divisors[index]) for index in windows))


def _p95(values: Sequence[Fraction]) -> Fraction:
    """Return the nearest rank of sorted values, which is their maximum where there are fewer than 20."""
    return values[-(-95 * len(values) // 100) - 1]


_STATISTICS: Mapping[str, Callable[[Sequence[Fraction]], Fraction]] = {
    "mean": mean,
    "median": median,
    "p95": _p95,
    "max": max,
    "min": min,
}
assert tuple(_STATISTICS) == STATISTICS


def _causes(rule: Rule, evidence: Evidence, rows: Sequence[EvidenceRow]) -> list[Contribution]:
    """Return parts of a value by source, the largest first; none where that only repeats the metric."""
    by_name: dict[str, list[EvidenceRow]] = {}
    for row in rows:
        by_name.setdefault(_name(rule, row), []).append(row)
    causes = [Contribution(name, _value(rule, evidence, same)) for name, same in by_name.items()]
    causes = sorted((cause for cause in causes if cause.value), key=lambda cause: (-cause.value, cause.name))
    return [] if [cause.name for cause in causes] == [rule.metric] else causes


def _name(rule: Rule, row: EvidenceRow) -> str:
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
            name = _short(str(row["name"]))
        case "partition":
            name = str(row["category"])
        case _:
            name = rule.metric
    return f"{name} in {row[metric.phase_key]}" if metric.phase_key and not rule.phase else name


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
