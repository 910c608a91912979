"""Wording of the outcome of rules: a line for people, an annotation for GitHub."""

from __future__ import annotations

from fractions import Fraction

from traceq.escaping import visible
from traceq.rules.evaluate import Breach, RuleOutcome
from traceq.rules.metrics import Measure
from traceq.rules.parse import Rule
from traceq.units import Unit, format_value

__all__ = ["annotation", "line"]

_MANY_RANKS = 16
_UNITS = {
    Measure.COUNT: Unit.MEAN,
    Measure.BYTES: Unit.BYTES,
    Measure.NS: Unit.NS,
    Measure.SHARE: Unit.PERCENT,
}
_BASE_UNITS = {Measure.COUNT: "", Measure.BYTES: " B", Measure.NS: " ns", Measure.SHARE: " %"}


def line(outcome: RuleOutcome, path: str = "") -> str:
    """Return `ok     dtoh in forward == 0`, or the value that breaks the rule; `path` where there are several."""
    where = f"{path}: " if path else ""
    if outcome.holds:
        return f"ok     {where}{outcome.rule.text}"
    return f"BROKEN {where}{_complaint(outcome)}"


def annotation(outcome: RuleOutcome, path: str) -> str:
    """Return the workflow command that shows a broken rule on the pull request."""
    return f"::error title=traceq check::{_escaped(f'{path}: {_complaint(outcome)}')}"


def _complaint(outcome: RuleOutcome) -> str:
    rule = outcome.rule
    why = f"; {rule.why}" if rule.why else ""
    if outcome.mismatch:
        return visible(f"{rule.text}: {outcome.mismatch}{why}")
    worst = outcome.breaches[0]
    others = sorted(breach.rank for breach in outcome.breaches[1:])
    named = f"rank {', '.join(map(str, others))}" if len(others) < _MANY_RANKS else f"{len(others)} other ranks"
    also = f"; also broken on {named}" if others else ""
    return visible(  # a line break before `::` would be a command to GitHub
        f"{rule.text}: {_value_text(rule, worst.value)} on rank {worst.rank}{_causes(rule, worst)}{also}{why}"
    )


def _causes(rule: Rule, breach: Breach) -> str:
    causes = [f"{_amount(rule, cause.value)} {cause.name}" for cause in breach.causes]
    more = [f"{breach.num_more_causes} more"] if breach.num_more_causes else []
    return f" ({', '.join([*causes, *more])})" if causes else ""


def _value_text(rule: Rule, value: Fraction) -> str:
    """Return the value, with every digit where it would read like the bound that it misses."""
    text = _amount(rule, value)
    if value == rule.bound or text != _amount(rule, rule.bound):
        return text
    return f"{_number(rule, value):,.12g}{_BASE_UNITS[rule.measure]}"


def _amount(rule: Rule, value: Fraction) -> str:
    return format_value(_number(rule, value), _UNITS[rule.measure])


def _number(rule: Rule, value: Fraction) -> float:
    return float(100 * value if rule.measure is Measure.SHARE else value)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
