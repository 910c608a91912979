"""What a comparison says, as data: the state of its verdict and what it rests on; words come from templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from traceq.claims.claim import Measure, measured
from traceq.claims.saying import filled
from traceq.compare.sentences import CAVEATS, SENTENCES
from traceq.frozen import frozen
from traceq.model import Caveat
from traceq.stats import Comparison
from traceq.units import Unit, format_value


@frozen
class Statement:
    """A statement of a comparison: `code` of its sentences, and what was measured, by name, as JSON has it.

    A measure whose name ends in `side` is `a` or `b`; words name it. `context` is what all sentences of a comparison
    may say besides: the names of its sides, the unit of its differences, the traced delta.
    """

    code: str
    measures: Mapping[str, Measure] = field(default_factory=dict)
    context: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def lead(self) -> str:
        """The sentence that says it."""
        return next(filled(SENTENCES[self.code].leads, self._fields), self.code)

    @property
    def evidence(self) -> tuple[str, ...]:
        """Sentences on what it rests on, of which everything is known."""
        return tuple(filled(SENTENCES[self.code].evidence, self._fields))

    @property
    def _fields(self) -> Mapping[str, Measure]:
        sides = {name: self.context[str(side)] for name, side in self.measures.items() if name.endswith("side")}
        return {**self.context, **_by_sign(self.measures.get("delta_ns")), **self.measures, **sides}

    def within(self, context: Mapping[str, Measure]) -> Statement:
        """Return it as one of a comparison."""
        return replace(self, context=context)

    def __str__(self) -> str:
        return " ".join((self.lead, *self.evidence))


def state(code: str, **measures: Measure | None) -> Statement:
    """Return a statement with the measures that are known."""
    return Statement(code, measured(**measures))


def doubtful(code: str, **measures: Measure | None) -> Caveat:
    """Return a caveat in the words of its code."""
    return Caveat(code, next(filled(CAVEATS[code], measures)))


def intervals(comparison: Comparison) -> dict[str, Measure | None]:
    """Return delta, percent and the ends of the 95 % interval of a comparison, per step or per sample."""
    low, high = comparison.ci95_ns or (None, None)
    return {
        "delta_ns": round(comparison.each(comparison.delta_ns)),
        "delta_pct": comparison.delta_pct,
        "least_ci_delta_ns": None if low is None else round(comparison.each(low)),
        "most_ci_delta_ns": None if high is None else round(comparison.each(high)),
    }


def _by_sign(delta_ns: Measure | None) -> dict[str, Measure]:
    """Return words for a delta, by its sign."""
    if not isinstance(delta_ns, int | float):
        return {}
    is_more = delta_ns > 0
    return {
        "size": format_value(abs(delta_ns), Unit.NS) if delta_ns else "nothing",
        "costs": "saves" if delta_ns < 0 else "costs",
        "more": "more" if is_more else "less",
        "longer": "longer" if is_more else "shorter",
        "slower": "slower" if is_more else "faster",
        "later": "later" if is_more else "earlier",
    }
