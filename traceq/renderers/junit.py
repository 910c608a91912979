"""Outcomes of rules as JUnit XML: a suite for each path, a case for each rule.

The elements and attributes are those of Jenkins' schema (junit-10.xsd), which GitLab and the actions for GitHub read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from traceq import __version__
from traceq.display import RenderOptions
from traceq.escaping import visible
from traceq.rules.evaluate import Checked, RuleOutcome, State
from traceq.rules.messages import complaint, measured
from traceq.units import format_ranks

__all__ = ["write_checks"]

_ELEMENTS = {State.BROKEN: "failure", State.CANNOT_TELL: "error"}


def write_checks(checks: Sequence[Checked], file: TextIO, options: RenderOptions) -> None:
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
