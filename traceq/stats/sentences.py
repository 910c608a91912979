"""Every sentence of a comparison of step times: verdicts with their reasons, and caveats by their code.

Fields are texts that their callers format, and counts.
"""

from __future__ import annotations

from traceq.model import Caveat

REASONS = {
    "in_the_noise": "{scope}{ci90} is within {threshold}",
    "material": "{scope}{ci95} is beyond {threshold}",
    "detectable": "{scope}{ci95} excludes 0 but overlaps {threshold}",
    "open": "{scope}{ci95} includes 0 and {ci90} extends beyond {threshold}",
    "needs": "{reason}; would need about {values} to decide",
    "needs_more_than": "{reason}; would need > {values} at this noise level",
    "no_interval": "{values} {give} an estimate but no confidence interval",
    "too_few": "{values} {give} no confidence interval; record at least {fewest}",
    "broken": "the A/A control differs from itself, far beyond chance: {reason}; record again",
    "one_of_questions": "{reason}; with {num} questions, chance does that in up to {chance} of runs",
    "only_question": "{reason}; chance does that in {chance} of runs, and a claim may in {allowed}",
    "no_cost_claimed": "{reason}; not claimed, as neither of the two costs is",
}
"""Why a verdict is what it is."""

OF_MEAN = "in this process, of the mean step with its rare events, "
ONE_WINDOW = "of one window per side"
FOR_SAMPLES = "for the {num:,} samples of A's step"

NO_PAIR = "no finished pair of halves"
NO_STEP = "no step to compare"

_CAVEATS = {
    "one_order": "{last} ran second in every pair: the delta includes the cost of running second",
    "mean_disagrees": "means differ by {mean}, medians by {median}: the median ignores rare stalls",
    "slow_steps_differ": (
        "{a:,} halves of A and {b:,} of B exceed {slow} times the median of their arm: one arm stalls more"
    ),
    "ranks_disagree": (
        "the job's step differs by {delta}, but {num:,} of {num_ranks:,} ranks disagree: {worst} on rank {rank}"
    ),
    "control_differs": (
        "the A/A control differs from itself: {reason}; chance does that in 1 of 30 noisy recordings; if it recurs, "
        "something else ran on this machine"
    ),
    "below_noise_floor": (
        "{delta} does not exceed the A/A noise floor, {floor}; the verdict is from the interval of this comparison"
    ),
    "carried_over": (
        "carry-over: a step of {arm} takes {more} after {other} relative to after {arm}; "
        "part of the delta is carry-over"
    ),
}


def caveat(code: str, **fields: str | int | float) -> Caveat:
    """Return the caveat of a code with its fields filled in."""
    return Caveat(code, _CAVEATS[code].format(**fields))
