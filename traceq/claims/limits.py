"""Limits of claims, each with its unit, its reason and what it rests on; those with one meaning are one."""

from __future__ import annotations

__all__ = [
    "EXPLAINED",
    "HIGH_SHARE",
    "LOST",
    "NOTABLE",
    "NOTHING",
    "REASON",
    "RETRAINED",
    "UNEVEN_STAGES",
    "UNLIKE",
    "Limit",
]


class Limit(float):
    """A number from which something is said, with what it is a number of, why it is that, and what it rests on."""

    unit: str
    why: str
    evidence: str

    def __new__(cls, value: float, unit: str, why: str, evidence: str = "convention") -> Limit:
        """Return a limit; `evidence` is a test, a page of docs, or `convention`."""
        limit = super().__new__(cls, value)
        limit.unit, limit.why, limit.evidence = unit, why, evidence
        return limit


# of all claims

NOTABLE = Limit(0.01, "part of a step", "a gain below it is lost in the scatter of most jobs' steps")
NOTHING = Limit(0.001, "part of a step", "what a change gains at most, or it gains nothing", "grain of the replay")
HIGH_SHARE = Limit(0.1, "part of a step", "a claim about as much of a step is severe")
UNLIKE = Limit(2.0, "longest over shortest step", "from there on the mean of steps is none of any step")

# of communication and ranks

REASON = Limit(0.25, "part of the waits for a rank", "its largest excess is said as the reason for them")
EXPLAINED = Limit(0.5, "part of what a rank takes longer", "what is less than half of it has another reason")
RETRAINED = Limit(0.05, "part of a step", "its remedy changes how the model is trained, which less is not worth")
UNEVEN_STAGES = Limit(1.15, "slowest rank over the mean", "moving layers gains more than another schedule")
LOST = Limit(0.05, "part of a trace", "where work is unrecorded for longer, the trace may lack calls that were issued")
