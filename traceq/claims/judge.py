"""What is decided of all claims alike: what they rest on, and how severe they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traceq.claims.claim import HIGH, LOW, MEDIUM, Basis, Claim
from traceq.claims.limits import LARGE, NOTHING
from traceq.claims.rules import rule_of

_ENDS = ("first_use", "graph_capture", "pool_growth")
"""Why what a claim is about does not recur (`claims.sentences.ONCE`), where later steps have none of it."""


def judged(
    claims: Iterable[Claim],
    basis: Basis,
    step_ns: float,
    *,
    lacks_ranks: bool = False,
    has_unprofiled: bool = False,
) -> tuple[Claim, ...]:
    """Return claims with what they rest on and their severity, of a job whose mean step takes `step_ns`.

    Where ranks are missing, which may be later, the step may gain nothing. Later steps gain nothing of what is once.
    """

    def judge(claim: Claim) -> Claim:
        gain = (0, claim.gain[1]) if claim.gain is not None and lacks_ranks else claim.gain
        if claim.measures.get("once") in _ENDS:
            gain = (0, 0)
        rests_on = claim.basis or basis
        rests_on = replace(rests_on, is_beside_unprofiled=has_unprofiled and not rests_on.is_unprofiled)
        claim = replace(claim, basis=rests_on, gain=gain)
        return replace(claim, severity=claim.severity or severity_of(claim, step_ns))

    return tuple(map(judge, claims))


def severity_of(claim: Claim, step_ns: float) -> str:
    """Return how much a claim matters in a step of `step_ns`, 0 where that is not known."""
    rule = rule_of(claim)
    if rule.questions_rest and not claim.ns:
        return HIGH
    if rule.is_note or (claim.gain is not None and claim.gain[1] < NOTHING * step_ns):
        return LOW
    return HIGH if 0 < LARGE * step_ns <= claim.ns else MEDIUM
