"""Two arms, or two lists of step times, compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.model import Caveat, Pairs
from traceq.stats.caveats import (
    below_noise_floor,
    carried_over,
    control_differs,
    mean_disagrees,
    one_order,
    ranks_disagree,
    slow_steps_differ,
)
from traceq.stats.hodges_lehmann import Interval, Shift, shift_between, shift_of_pairs
from traceq.stats.per_sample import Samples, for_samples_of_a, of_samples, scaled, scaled_control, with_measure
from traceq.stats.sequential import LOOKS, level_of
from traceq.stats.verdict import PAIRS, PROCESSES, STEPS, SampleKind, Threshold, Verdict, verdict

__all__ = ["Comparison", "compare_pairs", "compare_values", "slowest_rank_ns"]

THRESHOLD_PCT = 0.5
SLOW = 1.5  # times the median of its arm


@dataclass(frozen=True, slots=True)
class Comparison:
    """B's step minus A's, in ns, how sure that is, and every doubt about it.

    `a_ns`, `b_ns` are the medians of either arm. `delta_ns` is a median of differences, so it is not `b_ns - a_ns`.
    The intervals are None where the values are too few. `noise_floor_ns` is the end farther from zero of the A/A
    control's 95 % interval: the largest difference the machine may feign where there is none; None without a control.
    `rank_delta_ns` has one estimate a rank. `num_slow_a` and `num_slow_b` count values above 1.5 times the median of
    their arm. `unprofiled` is False where a profiler slowed the steps down. Unpaired values have 0 `num_pairs`; `num_a`
    and `num_b` count the values of either side, pairs or not. With `samples`, those of one step of A and of B, all
    times are for as many samples as A's step has.
    """

    a_ns: int
    b_ns: int
    delta_ns: int
    ci95_ns: Interval | None
    ci90_ns: Interval | None
    verdict: Verdict
    mean_delta_ns: int
    num_slow_a: int
    num_slow_b: int
    num_a: int = 0
    num_b: int = 0
    num_pairs: int = 0
    num_looks: int = 1
    samples: Samples | None = None
    rank_delta_ns: tuple[int, ...] = ()
    noise_floor_ns: int | None = None
    unprofiled: bool = True
    caveats: tuple[Caveat, ...] = ()

    @property
    def delta_pct(self) -> float:
        """`delta_ns` in percent of A's median step."""
        return 100 * self.delta_ns / self.a_ns if self.a_ns else 0.0

    def each(self, ns: int) -> float:
        """One of these times as people are told it: of a step, or with `samples` of one sample."""
        return ns / self.samples[0] if self.samples else ns


def compare_pairs(
    pairs: Pairs,
    *,
    control: Pairs | None = None,
    threshold_pct: float = THRESHOLD_PCT,
    samples: Samples | None = None,
) -> Comparison:
    """B against A from interleaved halves. The job's step is the maximum over ranks, taken half by half.

    `control` is the A/A control of the same recording. The intervals are as wide as the recording's number of looks
    asks for. With `samples` the time of a sample is compared, and not that of a step. Raises UnreadableInput where no
    pair was finished, or for a number of looks that no recording has.
    """
    pairs, control = for_samples_of_a(pairs, samples), scaled_control(control, pairs, samples)
    where = f"{pairs.a} against {pairs.b}"
    if not pairs.b_second.size:
        raise UnreadableInput(where, "no finished pair of halves", "at least one")
    if not 1 <= pairs.num_looks <= len(LOOKS):
        raise UnreadableInput(where, f"{pairs.num_looks} looks", f"1 to {len(LOOKS)}")
    first, second = pairs.first_ns.max(axis=0), pairs.second_ns.max(axis=0)
    a, b = slowest_rank_ns(pairs, of_b=False), slowest_rank_ns(pairs, of_b=True)
    threshold, level = Threshold(threshold_pct, _median(a)), level_of(pairs.num_looks)
    job = shift_of_pairs(second - first, pairs.b_second, level)
    ranks = [shift_of_pairs(change, pairs.b_second, level) for change in pairs.second_ns - pairs.first_ns]
    found = _compare(a, b, job, threshold, of_samples(PAIRS, samples))
    feigned = compare_pairs(control, threshold_pct=threshold_pct) if control and control.b_second.size else None
    floor = max(map(abs, feigned.ci95_ns)) if feigned and feigned.ci95_ns else None
    caveats = (
        *found.caveats,
        *one_order(pairs.b_second),
        *slow_steps_differ(found.num_slow_a, found.num_slow_b),
        *ranks_disagree(job, ranks, threshold),
        *control_differs(feigned.verdict if feigned else None),
        *below_noise_floor(job, found.verdict, floor),
        *carried_over(pairs.b_second, second - first, threshold),
    )
    return replace(
        found,
        num_pairs=len(a),
        num_looks=pairs.num_looks,
        samples=samples,
        rank_delta_ns=tuple(rank.delta for rank in ranks),
        noise_floor_ns=floor,
        caveats=with_measure(caveats, samples),
    )


def slowest_rank_ns(pairs: Pairs, *, of_b: bool) -> NDArray[np.int64]:
    """int64[P]: time of one step of either side in each pair, as long as on the slowest rank."""
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
    """B against A from values that are no pairs, int64[M] and int64[N] ns.

    Each value is the median step of one process, so that the values are independent; under four a side there is no
    interval. With `profiled` they are the steps of one traced window a side: those follow each other, and no draw
    decided which side ran first, so they give an estimate and never an interval.

    Raises UnreadableInput where a side is empty.
    """
    for name, side in (("A", a), ("B", b)):
        if not side.size:
            raise UnreadableInput(name, "no step to compare", "at least one")
    kind = STEPS if profiled else PROCESSES
    b = scaled(b, samples)
    shift = shift_between(b, a, testable=kind.fewest is not None and min(a.size, b.size) >= kind.fewest)
    found = _compare(a, b, shift, Threshold(threshold_pct, _median(a)), of_samples(kind, samples))
    return replace(found, unprofiled=not profiled, samples=samples, caveats=with_measure(found.caveats, samples))


def _compare(
    a: NDArray[np.int64], b: NDArray[np.int64], shift: Shift, threshold: Threshold, kind: SampleKind
) -> Comparison:
    """What values of every kind have in common."""
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
        caveats=mean_disagrees(shift, threshold),
    )


def _median(values: NDArray[np.int64]) -> int:
    return round(float(np.median(values)))


def _num_slow(values: NDArray[np.int64]) -> int:
    return int(np.count_nonzero(values > SLOW * np.median(values)))
