"""Outcomes of rules as JSON: `traceq.check/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO, TypedDict

import msgspec

from traceq.display import RenderOptions
from traceq.escaping import escape_json
from traceq.rules.evaluate import Checked, Contribution, RuleOutcome
from traceq.rules.messages import SourceTree, number, unit_of

__all__ = ["CHECK_SCHEMA", "CulpritObject", "RuleObject", "write_checks"]

CHECK_SCHEMA = "traceq.check/1"


class CulpritObject(TypedDict):
    """A cause of a broken rule; null where no line, or no file of the checkout, is known."""

    name: str
    value: float
    source: str | None
    file: str | None
    line: int | None


class RuleObject(TypedDict):
    """A rule on a path; null where it has no number, or no rank has a value."""

    path: str
    rule: str
    state: str
    value: float | None
    bound: float | None
    unit: str | None
    rank: int | None
    broken_ranks: list[int]
    culprits: list[CulpritObject]
    num_more_culprits: int
    reason: str | None
    why: str | None


def write_checks(checks: Sequence[Checked], file: TextIO, options: RenderOptions) -> None:
    """Write one object, with a row for each path and rule."""
    tree = SourceTree()
    document = {"schema": CHECK_SCHEMA, "rules": [row for checked in checks for row in _rows(checked, tree)]}
    file.write(escape_json(msgspec.json.format(msgspec.json.encode(document), indent=1).decode()) + "\n")


def _rows(checked: Checked, tree: SourceTree) -> Iterator[RuleObject]:
    for outcome in checked.outcomes:
        rule, shown = outcome.rule, outcome.shown
        yield {
            "path": checked.path,
            "rule": rule.text,
            "state": outcome.state,
            "value": number(rule, shown.value) if shown else None,
            "bound": number(rule, rule.bound) if rule.has_number else None,
            "unit": (unit_of(rule) or "count") if rule.has_number else None,
            "rank": shown.rank if shown else None,
            "broken_ranks": sorted(each.rank for each in outcome.breaches),
            "culprits": [_culprit(outcome, cause, tree) for cause in shown.causes] if shown else [],
            "num_more_culprits": shown.num_more_causes if shown else 0,
            "reason": outcome.mismatch or (outcome.unanswered if not outcome.breaches else "") or None,
            "why": rule.why or None,
        }


def _culprit(outcome: RuleOutcome, cause: Contribution, tree: SourceTree) -> CulpritObject:
    source = tree.find(cause.line)
    return {
        "name": cause.name,
        "value": number(outcome.rule, cause.value),
        "source": cause.line or None,
        "file": source.file if source else None,
        "line": source.line if source else None,
    }
