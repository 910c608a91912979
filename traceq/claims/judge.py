"""What is decided of all claims alike: what they rest on, and how severe they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traceq.claims.claim import HIGH, LOW, MEDIUM, Basis, Claim
from traceq.claims.limits import HIGH_SHARE, NOTHING
from traceq.claims.rules import rule_of

__all__ = ["judged", "severity_of"]


def judged(claims: Iterable[Claim], basis: Basis, step_ns: float) -> tuple[Claim, ...]:
    """Return claims with what they rest on and their severity, of a job whose mean step takes `step_ns`."""
    return tuple(
        replace(claim, basis=claim.basis or basis, severity=claim.severity or severity_of(claim, step_ns))
        for claim in claims
    )


def severity_of(claim: Claim, step_ns: float) -> str:
    """Return how much a claim matters in a step of `step_ns`."""
    rule = rule_of(claim)
    if rule.is_error:
        return HIGH
    if rule.is_note or (claim.gain is not None and claim.gain[1] < NOTHING * step_ns):
        return LOW
    return HIGH if claim.ns >= HIGH_SHARE * step_ns else MEDIUM
