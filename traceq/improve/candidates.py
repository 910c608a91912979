"""Candidates: values of toggles in the order in which they are tried, each with what it should gain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from traceq.claims.claim import Claim
from traceq.claims.rules import rule_of
from traceq.frozen import frozen
from traceq.improve.remedies import remedy_of
from traceq.threshold import THRESHOLD_PCT


@frozen
class Candidate:
    """A value of a toggle; `lead` is the code of the claim that it answers.

    `predicted_ns` is what a step should gain, at least and at most, by that `lead` or by the time of the `phase` that
    it changes (`predicted_by`); None where nothing bounds it.
    """

    toggle: str
    value: str
    lead: str = ""
    predicted_ns: tuple[int, int] | None = None
    predicted_by: str = ""


def candidates(
    toggles: Mapping[str, Sequence[str]],
    claims: Sequence[Claim],
    step_ns: int,
    phases_ns: Mapping[str, int],
    traced: float = 1.0,
) -> tuple[Candidate, ...]:
    """Return the values that may gain something, those first that answer a lead, then by the most they may gain.

    `toggles`: values by name, of which the first is the job's own. `step_ns` and `phases_ns`: the mean step, and its
    time by phase. A traced step takes `traced` times as long.
    """
    ranked = []
    for toggle, (_, *values) in toggles.items():
        lead = next((claim for claim in claims if toggle in rule_of(claim).toggles), None)
        for value in values:
            remedy = remedy_of(toggle, value)
            predicted_ns, by = gain_ns(lead, traced) if lead else None, "lead"
            if remedy.phase:
                bound_ns = phases_ns.get(remedy.phase, 0)
                bound_ns = min(bound_ns, step_ns - bound_ns) if remedy.overlaps else bound_ns
                if predicted_ns is None or bound_ns < predicted_ns[1]:
                    predicted_ns, by = (min(predicted_ns[0], bound_ns) if predicted_ns else 0, bound_ns), "phase"
            if not remedy.is_slower:
                code = lead.code if lead else ""
                ranked.append(Candidate(toggle, value, code, predicted_ns, by if predicted_ns else ""))
    return tuple(sorted(ranked, key=_rank))


def _rank(candidate: Candidate) -> tuple[bool, bool, int]:
    most_ns = candidate.predicted_ns[1] if candidate.predicted_ns else 0
    return not candidate.lead, candidate.predicted_ns is None, -most_ns


def gain_ns(claim: Claim, traced: float) -> tuple[int, int] | None:
    """Return what a step without the profiler gains, at least and at most, as `candidates`."""
    if claim.gain is None:
        return None
    factor = 1.0 if claim.basis is not None and claim.basis.is_unprofiled else traced
    return round(claim.gain[0] / factor), round(claim.gain[1] / factor)


def fitting(
    every: Sequence[Candidate], step_ns: float, most_arms: int
) -> tuple[Sequence[Candidate], Sequence[Candidate], Sequence[Candidate]]:
    """Return (those to try, at most `most_arms`; those that can gain nothing that matters; those beyond the time)."""
    least_ns = step_ns * THRESHOLD_PCT / 100
    may_gain = [each for each in every if each.predicted_ns is None or each.predicted_ns[1] >= least_ns]
    hopeless = [each for each in every if each not in may_gain]
    return may_gain[:most_arms], hopeless, may_gain[most_arms:]


def leads_left(claims: Iterable[Claim], toggles: Collection[str]) -> tuple[Claim, ...]:
    """Return the claims whose remedy gains something, and that none of these toggles answers."""
    others = (claim for claim in claims if not set(rule_of(claim).toggles) & set(toggles))
    return tuple(claim for claim in others if claim.gain is not None and claim.gain[1] > 0)
