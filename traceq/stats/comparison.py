"""Comparison of two arms, or of two lists of step times, with the caveats of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.model import Caveat, Pairs
from traceq.stats.hodges_lehmann import (
    LOOKS,
    ONE_LOOK,
    Interval,
    Shift,
    chance_to_exceed,
    level_of,
    location_of_pairs,
    shift_between,
    shift_of_pairs,
)
from traceq.stats.limits import ALPHA, BROKEN, RARE, SLOW
from traceq.stats.rare_events import RareEvents, typical_pairs, with_rare_events
from traceq.stats.sentences import FOR_SAMPLES, NO_PAIR, NO_STEP, REASONS, caveat
from traceq.stats.verdict import MEANS, PAIRS, PROCESSES, STEPS, SampleKind, Threshold, Verdict, VerdictName, verdict
from traceq.threshold import THRESHOLD_PCT
from traceq.units import Unit, format_value

Samples = tuple[int, int]
"""Samples per step of A and of B."""

_Caveats = tuple[Caveat, ...]


@frozen
class Comparison:
    """B's step minus A's: [Hodges-Lehmann estimates](method.md#diff-decide) with intervals, verdict and caveats."""

    a_ns: int
    """No arm saves more than that."""
    b_ns: int
    delta_ns: int
    ci95_ns: Interval | None
    ci90_ns: Interval | None
    verdict: Verdict
    mean_delta_ns: int
    num_slow_a: int
    """Values above 1.5 times the median of their arm, as of B."""
    num_slow_b: int
    num_a: int = 0
    num_b: int = 0
    num_pairs: int = 0
    """0: the values are not paired."""
    num_looks: int = 1
    """For which the intervals are valid."""
    samples: Samples | None = None
    """Those per step of A and of B, where all times are for as many samples as A's step has."""
    rank_delta_ns: tuple[int, ...] = ()
    noise_floor_ns: int | None = None
    """Largest difference that noise makes, by the A/A control."""
    unprofiled: bool = True
    """False: a profiler slowed the steps down."""
    p_material: float = 1.0
    """Chance of an interval so far beyond the threshold, over all looks, if the difference is at most that."""
    p_different: float = 1.0
    """Likewise beyond 0 if there is none."""
    num_questions: int = 1
    """Comparisons of the run whose verdicts hold together."""
    steps_apart: bool = False
    """No interval, but one side's steps are longer."""
    rare_events: tuple[RareEvents, ...] = ()
    """Taken out of the halves; where they differ beyond chance, delta, intervals and verdict are of the mean step with
    them.
    """
    typical: Shift | None = None
    """The shift without rare events."""
    caveats: tuple[Caveat, ...] = ()

    @property
    def delta_pct(self) -> float:
        """`delta_ns` in percent of `a_ns`."""
        return 100 * self.delta_ns / self.a_ns if self.a_ns else 0.0

    @property
    def is_seen(self) -> bool:
        """Whether there is a difference by the verdict, or one between these processes that no interval vouches for."""
        return self.verdict.is_difference or self.steps_apart

    def each(self, ns: int) -> float:
        """Return one of these times per step, or with `samples` per sample."""
        return ns / self.samples[0] if self.samples else ns


def compare_pairs(
    pairs: Pairs,
    *,
    control: Pairs | None = None,
    threshold_pct: float = THRESHOLD_PCT,
    samples: Samples | None = None,
) -> Comparison:
    """Return the comparison of B with A from interleaved halves, each the maximum over ranks.

    `control` is the A/A control of the same recording. The intervals account for the recording's number of looks. With
    `samples` the time per sample is compared instead of the step. Raises UnreadableInput where no pair is finished, or
    for a number of looks that no recording has.
    """
    pairs, control = _scaled_pairs(pairs, samples), _scaled_control(control, pairs, samples)
    where = f"{pairs.a} against {pairs.b}"
    if not pairs.b_second.size:
        raise UnreadableInput(where, NO_PAIR, "at least one")
    if not 1 <= pairs.num_looks <= len(LOOKS):
        raise UnreadableInput(where, f"{pairs.num_looks} looks", f"1 to {len(LOOKS)}")
    level = level_of(pairs.num_looks)
    pairs, rare = typical_pairs(pairs, level, samples[0] / samples[1] if samples else 1.0)
    first, second = pairs.first_ns.max(axis=0), pairs.second_ns.max(axis=0)
    a, b = slowest_rank_ns(pairs, of_b=False), slowest_rank_ns(pairs, of_b=True)
    a_ns, b_ns = location_of_pairs(a, pairs.b_second), location_of_pairs(b, pairs.b_second)
    threshold = Threshold(threshold_pct, a_ns)
    job = shift_of_pairs(second - first, pairs.b_second, level, threshold.ns)
    ranks = [shift_of_pairs(change, pairs.b_second, level) for change in pairs.second_ns - pairs.first_ns]
    mean = with_rare_events(job, rare, threshold.ns)
    comparison = _compare(a, b, mean or job, threshold, _kind_at_samples(MEANS if mean else PAIRS, samples))
    if mean:
        comparison = _of_mean(comparison, rare, job)
    a_to_a = compare_pairs(control, threshold_pct=threshold_pct) if control and control.b_second.size else None
    floor = max(map(abs, a_to_a.ci95_ns)) if a_to_a and a_to_a.ci95_ns else None
    is_broken = a_to_a is not None and a_to_a.p_material < BROKEN
    if a_to_a and is_broken:
        comparison = _broken(comparison, a_to_a.verdict.reason)
    caveats = (
        *comparison.caveats,
        *_one_order(pairs.b_second),
        *_slow_steps_differ(comparison.num_slow_a, comparison.num_slow_b),
        *_ranks_disagree(job, ranks, threshold),
        *_control_differs(a_to_a.verdict if a_to_a and not is_broken else None),
        *_below_noise_floor(mean or job, comparison.verdict, floor),
        *carried_over(pairs.b_second, second - first, threshold),
    )
    return replace(
        comparison,
        b_ns=b_ns + (sum(each.cost_b_ns for each in rare) if mean else 0),
        rare_events=rare,
        num_pairs=len(a),
        num_looks=pairs.num_looks,
        samples=samples,
        rank_delta_ns=tuple(rank.delta for rank in ranks),
        noise_floor_ns=floor,
        caveats=_note_samples(caveats, samples),
    )


def slowest_rank_ns(pairs: Pairs, *, of_b: bool) -> NDArray[np.int64]:
    """int64[P] ns: step of one side in each pair, on its slowest rank."""
    first, second = pairs.first_ns.max(axis=0), pairs.second_ns.max(axis=0)
    times: NDArray[np.int64] = np.where(pairs.b_second == of_b, second, first)
    return times


def compare_values(
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    *,
    profiled: bool = False,
    threshold_pct: float = THRESHOLD_PCT,
    samples: Samples | None = None,
) -> Comparison:
    """Return the comparison of B with A from unpaired values, int64[M] and int64[N] ns.

    Each value is the median step of one process, so that the values are independent; below four per side there is no
    interval. With `profiled` they are the steps of one traced window per side: these are consecutive, and the order of
    the sides was not randomised, so they give an estimate and never an interval.

    Raises UnreadableInput where a side is empty.
    """
    for name, side in (("A", a), ("B", b)):
        if not side.size:
            raise UnreadableInput(name, NO_STEP, "at least one")
    kind = STEPS if profiled else PROCESSES
    b = _scaled(b, samples)
    shift = shift_between(b, a, testable=kind.fewest is not None and min(a.size, b.size) >= kind.fewest)
    comparison = _compare(a, b, shift, Threshold(threshold_pct, _median(a)), _kind_at_samples(kind, samples))
    caveats = _note_samples(comparison.caveats, samples)
    return replace(comparison, unprofiled=not profiled, samples=samples, caveats=caveats)


def _compare(
    a: NDArray[np.int64], b: NDArray[np.int64], shift: Shift, threshold: Threshold, kind: SampleKind
) -> Comparison:
    """Return the part of a comparison that all kinds of values share."""
    return Comparison(
        a_ns=threshold.a_ns,
        b_ns=_median(b),
        delta_ns=shift.delta,
        ci95_ns=shift.ci95,
        ci90_ns=shift.ci90,
        verdict=verdict(shift, threshold, kind, (a.size, b.size)),
        mean_delta_ns=shift.mean,
        num_slow_a=_num_slow(a),
        num_slow_b=_num_slow(b),
        num_a=len(a),
        num_b=len(b),
        p_material=chance_to_exceed(shift.z_beyond, shift.level.num_looks),
        p_different=chance_to_exceed(shift.z_beyond_0, shift.level.num_looks),
        caveats=_mean_disagrees(shift, threshold),
    )


def _of_mean(comparison: Comparison, rare: tuple[RareEvents, ...], typical: Shift) -> Comparison:
    """Return the comparison of the mean step, which is asked besides the typical one: its chances count twice."""
    return replace(
        comparison,
        a_ns=comparison.a_ns + sum(each.cost_a_ns for each in rare),
        typical=typical,
        p_material=min(1.0, 2 * comparison.p_material),
        p_different=min(1.0, 2 * comparison.p_different),
    )


def _broken(comparison: Comparison, control_reason: str) -> Comparison:
    """Return the comparison without a verdict: the recording finds a difference where there is none."""
    reason = REASONS["broken"].format(reason=control_reason)
    broken = replace(comparison.verdict, name="inconclusive", reason=reason, pairs_needed=None)
    return replace(comparison, verdict=broken, p_material=1.0, p_different=1.0)


def _median(values: NDArray[np.int64]) -> int:
    return round(float(np.median(values)))


def _num_slow(values: NDArray[np.int64]) -> int:
    return int(np.count_nonzero(values > SLOW * np.median(values)))


_SMALLEST_BLOCK = 8  # pairs that the recorder runs back to back, before it pauses, and a settling pair


def carried_over(b_second: NDArray[np.bool_], change: NDArray[np.int64], threshold: Threshold) -> _Caveats:
    """Return a caveat for each arm whose halves depend, by more than the threshold, on the arm that ran before.

    `change` int64[P] is second minus first half of each pair. A second half always follows the other arm. Which arm a
    first half follows was drawn with the pair before, so pairs of the same order that differ in it differ by the
    carry-over of their first half. The first pair of a block follows the settling pair and is left out.
    """
    from statistics import NormalDist  # for recordings with pairs alone

    rare_in_either_arm = replace(ONE_LOOK, z95=NormalDist().inv_cdf(1 - float(RARE) / 4))
    is_inside = np.arange(1, len(b_second)) % _SMALLEST_BLOCK != 0
    before, order, changes = b_second[:-1][is_inside], b_second[1:][is_inside], change[1:][is_inside]
    caveats = []
    for arm, other, starts in (("A", "B", True), ("B", "A", False)):
        after_self, after_other = (changes[(order == starts) & (before == last)] for last in (not starts, starts))
        if not (after_self.size and after_other.size):
            continue
        carry_over = shift_between(after_self, after_other, level=rare_in_either_arm)
        low, high = carry_over.ci95 or (0, 0)
        if (low > 0 or high < 0) and abs(carry_over.delta) > threshold.ns:
            caveats.append(caveat("carried_over", arm=arm, other=other, more=_delta(carry_over.delta)))
    return tuple(caveats)


def _one_order(b_second: NDArray[np.bool_]) -> _Caveats:
    """Return a caveat if all pairs ran in one order, as in a recording that was stopped early."""
    if b_second.any() and not b_second.all():
        return ()
    return (caveat("one_order", last="B" if b_second.all() else "A"),)


def _mean_disagrees(shift: Shift, threshold: Threshold) -> _Caveats:
    """Return a caveat if mean and median differ by more than the threshold plus the error of the mean."""
    if abs(shift.mean - shift.delta) <= threshold.ns + ONE_LOOK.z95 * shift.mean_error:
        return ()
    return (caveat("mean_disagrees", mean=_delta(shift.mean), median=_delta(shift.delta)),)


def _slow_steps_differ(num_slow_a: int, num_slow_b: int) -> _Caveats:
    """Return a caveat if the split of slow halves between the arms is uneven by an exact sign test at 1 %."""
    num, fewer = num_slow_a + num_slow_b, min(num_slow_a, num_slow_b)
    if sum(math.comb(num, i) for i in range(fewer + 1)) * 2 > RARE * 2**num:
        return ()
    return (caveat("slow_steps_differ", a=num_slow_a, b=num_slow_b, slow=SLOW),)


def _ranks_disagree(shift: Shift, ranks: Sequence[Shift], threshold: Threshold) -> _Caveats:
    """Return a caveat that names the rank whose interval is farthest from the job's, if by more than the threshold."""
    if not shift.ci95:
        return ()
    gaps = [max(rank.ci95[0] - shift.ci95[1], shift.ci95[0] - rank.ci95[1]) if rank.ci95 else 0 for rank in ranks]
    worst = int(np.argmax(gaps))
    if gaps[worst] <= threshold.ns:
        return ()
    num = sum(gap > threshold.ns for gap in gaps)
    deltas = {"delta": _delta(shift.delta), "worst": _delta(ranks[worst].delta)}
    return (caveat("ranks_disagree", num=num, num_ranks=len(ranks), rank=worst, **deltas),)


def _control_differs(control: Verdict | None) -> _Caveats:
    """Return a caveat if the A/A control shows a material difference; chance does that in 1 of 30 noisy recordings.

    The verdict does not depend on it: it would lose as many true claims as false ones.
    """
    if not control or control.name != "material":
        return ()
    return (caveat("control_differs", reason=control.reason),)


def _below_noise_floor(shift: Shift, verdict: Verdict, floor_ns: int | None) -> _Caveats:
    """Return a caveat if the verdict is a difference that does not exceed the A/A noise floor."""
    if floor_ns is None or not verdict.is_difference or abs(shift.delta) > floor_ns:
        return ()
    return (caveat("below_noise_floor", delta=_delta(shift.delta), floor=format_value(floor_ns, Unit.NS)),)


def _delta(ns: int) -> str:
    return format_value(ns, Unit.DELTA_NS)


def samples_apart(a: int, b: int) -> Samples | None:
    """Return the samples per step where both are known (not 0) and differ; then the time per sample is compared."""
    return (a, b) if a and b and a != b else None


def _scaled(b: NDArray[np.int64], samples: Samples | None) -> NDArray[np.int64]:
    """int64 ns: B's times scaled to A's number of samples."""
    if samples is None:
        return b
    times: NDArray[np.int64] = np.rint(b * (samples[0] / samples[1])).astype(np.int64)
    return times


def _scaled_pairs(pairs: Pairs, samples: Samples | None) -> Pairs:
    """Return the pairs with B's halves scaled to A's number of samples."""
    first = np.where(pairs.b_second, pairs.first_ns, _scaled(pairs.first_ns, samples))
    second = np.where(pairs.b_second, _scaled(pairs.second_ns, samples), pairs.second_ns)
    return replace(pairs, first_ns=first, second_ns=second)


def _scaled_control(control: Pairs | None, pairs: Pairs, samples: Samples | None) -> Pairs | None:
    """Return the A/A control scaled likewise; both of its halves are of one arm, which may be this comparison's B."""
    if control is None or control.a == pairs.a:
        return control
    first, second = (_scaled(times, samples) for times in (control.first_ns, control.second_ns))
    return replace(control, first_ns=first, second_ns=second)


def _note_samples(caveats: tuple[Caveat, ...], samples: Samples | None) -> tuple[Caveat, ...]:
    """Return the caveats; those that contain a time say for how many samples it is."""
    if samples is None:
        return caveats
    timed = ("below_noise_floor", "carried_over", "mean_disagrees", "ranks_disagree")
    note = f" ({FOR_SAMPLES.format(num=samples[0])})"
    return tuple(Caveat(caveat.code, caveat.text + note * (caveat.code in timed)) for caveat in caveats)


def _kind_at_samples(kind: SampleKind, samples: Samples | None) -> SampleKind:
    """Return the kind of values, its scope saying for how many samples the times are."""
    if samples is None:
        return kind
    return replace(kind, scope=f"{kind.scope}{FOR_SAMPLES.format(num=samples[0])}, ")


@frozen
class Interaction:
    """Cost of a change in the second context minus the first, ns per step; intervals are None where either is."""

    delta_ns: int
    ci95_ns: Interval | None
    ci90_ns: Interval | None
    verdict: Verdict


def answer_together(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons of one run, the main question first, claiming only what holds for all of them together.

    The intervals are unchanged, each with its own 95 %.
    """
    material = adjusted([comparison.p_material for comparison in comparisons])
    different = adjusted([comparison.p_different for comparison in comparisons])
    num = len(comparisons)
    return tuple(
        replace(comparison, verdict=_claimed(comparison.verdict, num, *chances), num_questions=num)
        for comparison, *chances in zip(comparisons, material, different, strict=True)
    )


def adjusted(p: Sequence[float]) -> NDArray[np.float64]:
    """float64[M]: p-values adjusted for all M questions, of which the first is the main one.

    A question is claimed if its value is at most 5 %: the main one if it is below 2.5 %, or below 5 % and all others,
    of which there are some, are claimed; the others by Holm's procedure at 2.5 %, or at 5 % if the main one is claimed.
    """
    main, others = p[0], _holm(np.array(p[1:]))
    of_others = np.maximum(others, 2 * np.minimum(main, others))
    least_of_main = 2 * min(main, others.max()) if others.size else 2 * main
    return np.array([max(main, least_of_main), *of_others])


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[M]: the smallest levels at which Holm's procedure claims each question."""
    order = np.argsort(p, kind="stable")
    result = np.empty(len(p))
    result[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(result, 1.0)


def _claimed(verdict: Verdict, num: int, p_material: float, p_different: float) -> Verdict:
    """Return the verdict, weakened to what one of `num` questions may claim."""
    if not verdict.is_difference:
        return verdict
    if verdict.name == "material" and p_material <= ALPHA:
        return verdict
    name: VerdictName
    name, chance = ("detectable", p_material) if p_different <= ALPHA else ("inconclusive", p_different)
    if verdict.name == name:
        return verdict
    if num > 1:
        reason = REASONS["one_of_questions"].format(reason=verdict.reason, num=num, chance=_percent(chance))
    else:
        chances = {"chance": _percent(chance / 2), "allowed": _percent(ALPHA / 2)}
        reason = REASONS["only_question"].format(reason=verdict.reason, **chances)
    return replace(verdict, name=name, reason=reason)


def _percent(share: float) -> str:
    return format_value(100 * share, Unit.PERCENT)


def interaction(here: Comparison, there: Comparison) -> Interaction:
    """Return the cost there minus the cost here, of two comparisons that share no pair.

    The threshold is in percent of A's step here. The interval of the difference comes from the ends of both: distances
    from the estimates add up by squares (Donner and Zou, Statistical Methods in Medical Research 21, 2012: MOVER). An
    interaction is one more question of the run, which is asked only if one of the two costs is claimed.
    """
    ci95 = _difference(here.delta_ns, here.ci95_ns, there.delta_ns, there.ci95_ns)
    ci90 = _difference(here.delta_ns, here.ci90_ns, there.delta_ns, there.ci90_ns)
    mean = there.mean_delta_ns - here.mean_delta_ns
    level = level_of(max(here.num_looks, there.num_looks))
    shift = Shift(there.delta_ns - here.delta_ns, mean, math.inf, ci95, ci90, level)
    threshold = Threshold(here.verdict.threshold_pct, here.a_ns)
    result = verdict(shift, threshold, PAIRS, (here.num_pairs, there.num_pairs))
    if result.is_difference and not (here.verdict.is_difference or there.verdict.is_difference):
        reason = REASONS["no_cost_claimed"].format(reason=result.reason)
        result = replace(result, name="inconclusive", reason=reason)
    return Interaction(shift.delta, ci95, ci90, result)


def _difference(here_ns: int, here: Interval | None, there_ns: int, there: Interval | None) -> Interval | None:
    if not (here and there):
        return None
    delta = there_ns - here_ns
    below = math.hypot(there_ns - there[0], here[1] - here_ns)
    above = math.hypot(there[1] - there_ns, here_ns - here[0])
    return round(delta - below), round(delta + above)
