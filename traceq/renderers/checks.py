"""Outcomes of rules for programs: as JSON, `traceq.check/1`, and as JUnit XML.

JUnit has a suite for each path and a case for each rule. Its elements and attributes are those of Jenkins' schema
(junit-10.xsd), which GitLab and the actions for GitHub read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO, TypedDict
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import msgspec

from traceq import __version__
from traceq.display import RenderOptions
from traceq.escaping import escape_json, visible
from traceq.rules.evaluate import Checked, Contribution, RuleOutcome, State
from traceq.rules.messages import SourceTree, complaint, measured, number, unit_of
from traceq.units import format_ranks

_ELEMENTS = {State.BROKEN: "failure", State.CANNOT_TELL: "error"}

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


def write_junit(checks: Sequence[Checked], file: TextIO, options: RenderOptions) -> None:
    """Write the suites. Controls, which XML cannot hold, are replaced."""
    counts = _counts(outcome for checked in checks for outcome in checked.outcomes)
    root = Element("testsuites", {"name": "traceq check", **counts})
    for checked in checks:
        counts = _counts(checked.outcomes)
        suite = SubElement(root, "testsuite", {"name": visible(checked.path), "time": "0", **counts})
        properties = SubElement(suite, "properties")
        _add_property(properties, "traceq", __version__)
        _add_property(properties, "ranks", format_ranks(checked.ranks))
        for outcome in checked.outcomes:
            _add_property(properties, outcome.rule.text, measured(outcome))
            _add_case(suite, checked.path, outcome)
    ElementTree.indent(root, " ")
    file.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    file.write(ElementTree.tostring(root, encoding="unicode") + "\n")


def _counts(outcomes: Iterable[RuleOutcome]) -> dict[str, str]:
    states = [outcome.state for outcome in outcomes]
    numbers = {"failures": states.count(State.BROKEN), "errors": states.count(State.CANNOT_TELL)}
    return {"tests": str(len(states)), **{name: str(number) for name, number in numbers.items()}}


def _add_property(properties: Element, name: str, value: str) -> None:
    SubElement(properties, "property", name=visible(name), value=visible(value))


def _add_case(suite: Element, path: str, outcome: RuleOutcome) -> None:
    case = SubElement(suite, "testcase", classname=visible(path), name=visible(outcome.rule.text), time="0")
    if not outcome.holds:
        element = SubElement(case, _ELEMENTS[outcome.state], type=str(outcome.state), message=complaint(outcome))
        element.text = complaint(outcome)
