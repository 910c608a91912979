"""Statements of a comparison, by code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traceq.claims.claim import Measure
from traceq.compare.result import Diff
from traceq.compare.statement import Statement

__all__ = ["codes", "of_code", "only", "statements"]


def statements(diff: Diff) -> tuple[Statement, ...]:
    """The verdict of a comparison, what it rests on, and what makes the delta."""
    return diff.answer, *diff.basis, *diff.reasons


def codes(each: Iterable[Statement]) -> list[str]:
    """The codes of statements, in their order."""
    return [statement.code for statement in each]


def of_code(code: str, each: Diff | Iterable[Statement]) -> list[Mapping[str, Measure]]:
    """The measures of all statements of a code."""
    return [s.measures for s in (statements(each) if isinstance(each, Diff) else each) if s.code == code]


def only(code: str, each: Diff | Iterable[Statement]) -> Mapping[str, Measure]:
    """The measures of the only statement of a code."""
    (measures,) = of_code(code, each)
    return measures
