"""A verdict in sentences: what B costs against A, per step and per sample, and how certain that is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from traceq.compare.comparable import UNKNOWN_SAMPLES
from traceq.compare.ranks import only_changed_rank
from traceq.compare.result import CellDelta, Comparable, Diff, RankDelta, Traced
from traceq.compare.side import Side
from traceq.facts.ranks.loading_workers import worker_line
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.frozen import frozen
from traceq.model import Run, Timings
from traceq.stats import Comparison, Interaction
from traceq.stats.hodges_lehmann import location_of_pairs, shift_of_pairs
from traceq.stats.sample_kinds import PROCESSES
from traceq.units import Unit, format_value

__all__ = [
    "cpu_words",
    "doubt",
    "interaction_words",
    "no_difference_seen",
    "rank_words",
    "sample_words",
    "slowest_words",
    "unprofiled_phase_words",
    "verdict_words",
]

_SEEN_PCT = 0.005
"""Percent of a step below which profiled steps, which have no interval, show no difference."""
_MOST_RANKS = 8
_COUNT_SAMPLES = (
    " Recorded with samples, from a DataLoader or by traceq.record(samples_per_rank=N), they are compared per sample."
)


def verdict_words(
    a_name: str,
    b_name: str,
    comparability: Comparable,
    comparison: Comparison | None,
    *,
    missing: str = "",
    control: str = "",
    per: str = "per step",
    num_ranks: int = 1,
    is_one_job: bool = False,
    uncommon: str = "",
    is_jitter: bool = False,
    ranges: str = "",
    does_other_work: bool = False,
    pace: str = "",
    alone: str = "",
) -> tuple[str, ...]:
    """Return the cost of B against A with interval and verdict, and why; or what is missing for a comparison.

    A verdict that is open begins with that, and the interval: its estimate is neither a cost nor a saving.
    `control` is the arm of the A/A control, A unless named; `per` is the unit of the cost unless that is per sample.
    Profiled steps of several ranks are those of the job. Sides that are ranks of one job have no change between them,
    but maybe `uncommon` steps; where all that differs `is_jitter`, profiled steps show no difference. `ranges` of their
    times are given where they do not tell the sides apart: no difference, unless most is work that a side has `alone`.
    Of another job, which `does_other_work`, nothing costs or saves, nor what only has another `pace`, nor of one
    process each whose steps lie apart.
    """
    if not comparability.ok:
        reasons = "; ".join(comparability.reasons)
        how = _COUNT_SAMPLES if UNKNOWN_SAMPLES in reasons else ""
        return (f"Not comparable ({reasons}): the breakdown shows where time goes, not what a change costs.{how}",)
    if comparison is None:
        return (f"Nothing to compare: {missing}.",)
    verdict, floor = comparison.verdict, comparison.noise_floor_ns
    amount, unit = comparison.each(comparison.delta_ns), f"{_per(comparison, per)} ({_estimate(comparison)})"
    is_observed = does_other_work or comparison.steps_apart or (pace and not comparison.unprofiled)
    cost = f"{_taken(amount) if is_observed else _cost(amount)} {unit}{' but does other work' * does_other_work}"
    if not comparison.unprofiled:
        steps = (
            f"{comparison.num_a:,} and {comparison.num_b:,} profiled steps" if per == "per step" else "one trace each"
        )
        slowest = (", each on its slowest rank" if per == "per step" else ", of its slowest rank") * (num_ranks > 1)
        of_ranges = f"{steps} of {ranges}{slowest}" if ranges else f"{steps}{slowest}"
        steps += slowest
        if no_difference_seen(comparison):
            return (f"No difference in time seen between {a_name} and {b_name}, from {steps}.",)
        delta = f"{_delta(amount)} {unit}"
        if is_jitter:
            return (f"No difference beyond jitter seen between {a_name} and {b_name}: {delta}, from {steps}.",)
        if is_one_job:
            longer = "longer" if comparison.delta_ns > 0 else "shorter"
            by = f"{format_value(abs(comparison.delta_ns), Unit.NS)} {longer} than that of {a_name}"
            why = "they are ranks of one job, which wait for each other, and no change is between them"
            steps += f" ({uncommon})" * bool(uncommon)
            return (f"The step of {b_name} is {by} ({_estimate(comparison)}), from {steps}: {why}.",)
        if ranges and alone and not does_other_work:
            return (f"{b_name} {_taken(amount)} {unit}, from {of_ranges}, no interval: {alone}.",)
        if ranges and not does_other_work:
            scatter = f"the scatter of steps seen between {a_name} and {b_name}"
            return (f"No difference beyond {scatter}: {delta}, from {of_ranges}.",)
        why = f": {pace}" if pace and not does_other_work else ""
        return (f"{b_name} {cost}, from {of_ranges}, no interval{why}.",)
    threshold = format_value(verdict.threshold_pct, Unit.PERCENT)
    control = control or a_name
    noise = "" if floor is None else f" A/A noise floor: {format_value(floor, Unit.NS)} ({control} against itself)."
    lead = f"{b_name} {cost}"
    if comparison.steps_apart:
        lead = f"{lead}, from {_processes(comparison)}, no interval"
    elif verdict.is_open:
        lead = _open(a_name, b_name, comparison, _per(comparison, per))
    same = f"{pace[0].upper()}{pace[1:]}." if pace and comparison.steps_apart and not does_other_work else ""
    return (
        f"{lead}: {verdict.text} at the {threshold} threshold{_one_of(comparison)}.",
        f"Why: {verdict.reason}.{noise}",
        *filter(None, [same, _typical(comparison)]),
    )


def _typical(comparison: Comparison) -> str:
    """Return what the typical step differs by, and the rare events that the mean has besides; "" where it has none.

    `Typical step +0.1 ms; mean +8.1 ms (+5.9 ms to +10.4 ms): garbage collection of generation 2, 400 ms in 1 of ...`.
    """
    if comparison.typical is None:
        return ""
    typical = _delta(comparison.each(comparison.typical.delta))
    mean = f"{_delta(comparison.each(comparison.delta_ns))} ({_interval(comparison)})"
    row = comparison.rare_events[0]
    rates = " instead of ".join(_one_in(rate) for rate in (row.rate_b, row.rate_a))
    return f"Typical step {typical}; mean {mean}: {row.name}, {format_value(row.size_ns, Unit.NS)} in {rates}."


def _one_in(rate: float) -> str:
    """Return `1 of 50 steps`."""
    return f"1 of {max(1, round(1 / rate)):,} steps" if rate else "none"


def no_difference_seen(comparison: Comparison | None) -> bool:
    """Return whether profiled steps are as long on both sides."""
    return comparison is not None and not comparison.unprofiled and abs(comparison.delta_pct) < _SEEN_PCT


def sample_words(comparison: Comparison | None, steps: Comparison | None) -> tuple[str, ...]:
    """Return, where a verdict is about samples, the samples and the time of a step."""
    if comparison is None or steps is None or comparison.samples is None:
        return ()
    a_ns, b_ns = format_value(steps.a_ns, Unit.NS), format_value(steps.b_ns, Unit.NS)
    interval = f" (95 % CI {_interval(steps)})" if steps.ci95_ns else ""
    a_num, b_num = comparison.samples
    trains = f"A step trains on {b_num:,} samples instead of {a_num:,} and takes {b_ns} instead of {a_ns}"
    rates = [format_value(num * 1e9 / ns, Unit.COUNT) for num, ns in ((b_num, steps.b_ns), (a_num, steps.a_ns)) if ns]
    throughput = f" The job trains {rates[0]} samples/s instead of {rates[1]}." if len(rates) == 2 else ""
    return (f"{trains}: {_delta(steps.delta_ns)}{interval}.{throughput}",)


def interaction_words(here: Diff, there: Diff, interaction: Interaction) -> str:
    """Return `Interaction: +256 us per step (95 % CI ...), material: on costs 394 us per step against off, ...`."""
    costs = ", ".join(
        f"{diff.b_name} {_cost(diff.comparison.delta_ns)} per step against {diff.a_name}"
        for diff in (here, there)
        if diff.comparison
    )
    interval = f" (95 % CI {' to '.join(map(_delta, interaction.ci95_ns))})" if interaction.ci95_ns else ""
    verdict = interaction.verdict
    meaning = ""
    if verdict.name == "in_the_noise":
        meaning = "; the cost is the same in both contexts"
    elif verdict.is_difference:
        effect = "hides this much of" if interaction.delta_ns > 0 else "adds this much to"
        meaning = f"; other work in {here.a_name} {effect} the cost"
    return f"Interaction: {_delta(interaction.delta_ns)} per step{interval}, {verdict.text}: {costs}{meaning}."


def cpu_words(comparison: Comparison | None) -> tuple[str, ...]:
    """Return the verdict on the main thread's CPU time, which excludes blocked time."""
    if comparison is None:
        return ()
    delta = f"{_delta(comparison.each(comparison.delta_ns))} {_per(comparison)} ({_estimate(comparison)})"
    of_ranks = [_delta(ns) for ns in comparison.rank_delta_ns]
    most = " on the rank with most" if len(of_ranks) > 1 else ""
    by_rank = ", ".join(f"rank {rank} {text}" for rank, text in enumerate(of_ranks))
    each = f" By rank: {by_rank} per step." if 1 < len(of_ranks) <= _MOST_RANKS and comparison.samples is None else ""
    return (f"CPU time of the main thread{most} (excludes blocked time): {delta}: {comparison.verdict.text}.{each}",)


def _cost(delta_ns: float) -> str:
    amount = format_value(abs(delta_ns), Unit.NS)
    return f"costs {amount}" if delta_ns > 0 else f"saves {amount}" if delta_ns < 0 else "costs nothing"


def _taken(delta_ns: float) -> str:
    amount = format_value(abs(delta_ns), Unit.NS)
    return f"takes {amount} {'more' if delta_ns > 0 else 'less'}" if delta_ns else "takes as long"


def _processes(comparison: Comparison) -> str:
    """Return `1 process per side`."""
    nums = dict.fromkeys((comparison.num_a, comparison.num_b))
    return PROCESSES.count(" and ".join(f"{num:,}" for num in nums))


def _open(a_name: str, b_name: str, comparison: Comparison, per: str) -> str:
    """Return `Not decided: on against off is -3.76 ms to +8.48 ms per step (95 % CI, estimate +2.35 ms, +2.3 %)`."""
    delta = _delta(comparison.each(comparison.delta_ns))
    percent = format_value(comparison.delta_pct, Unit.DELTA_PERCENT)
    arms = f"Not decided: {b_name} against {a_name}"
    if comparison.ci95_ns is None:
        return f"{arms} has no interval, estimate {delta} {per} ({percent})"
    return f"{arms} is {_interval(comparison)} {per} (95 % CI, estimate {delta}, {percent})"


def _delta(delta_ns: float) -> str:
    return format_value(delta_ns, Unit.DELTA_NS)


def _one_of(comparison: Comparison) -> str:
    """Return ` (1 of 5 questions)` where a run asks several: their verdicts hold together."""
    return f" (1 of {comparison.num_questions} questions)" if comparison.num_questions > 1 else ""


def _per(comparison: Comparison, per: str = "per step") -> str:
    return per if comparison.samples is None else "per sample"


def _estimate(comparison: Comparison) -> str:
    """Return `+10.0 %, 95 % CI +99.0 us to +101 us`."""
    percent = format_value(comparison.delta_pct, Unit.DELTA_PERCENT)
    return f"{percent}, 95 % CI {_interval(comparison)}" if comparison.ci95_ns else percent


def _interval(comparison: Comparison) -> str:
    return " to ".join(_delta(comparison.each(end)) for end in comparison.ci95_ns or ())


_STRAGGLES = 1.02
_SAME_DELTA = 0.05
"""Part of a delta by which that of another rank may differ: ranks that wait for each other take as long."""


def rank_words(
    traced: Traced, deltas: Sequence[RankDelta], cells: Sequence[CellDelta], waited_in: str
) -> tuple[str, ...]:
    """Return one line or none: the only rank that changed, else the one with the most own time on both sides.

    Of the only rank that changed, the line has the largest of its `cells` and the collective in which others wait.
    """
    if only := only_changed_rank(deltas):
        return (_only_rank_text(only, cells, waited_in, traced.per),)
    explained = next((delta for delta in deltas if delta.rank == traced.rank), None)
    others = [delta for delta in deltas if delta.rank != traced.rank]
    if explained is None or not others or explained.delta_ns == 0:
        return ()
    others_a, others_b = median(rank.own_a_ns for rank in others), median(rank.own_b_ns for rank in others)
    if explained.own_a_ns < _STRAGGLES * others_a or explained.own_b_ns < _STRAGGLES * others_b:
        return ()
    pairs = ((explained.own_a_ns, explained.own_b_ns), (others_a, others_b))
    times, others_times = (" and ".join(_time(ns) for ns in pair) for pair in pairs)
    is_most = explained.own_a_ns >= max(rank.own_a_ns for rank in others) and explained.own_b_ns >= max(
        rank.own_b_ns for rank in others
    )
    lead = "The same rank has the most own time on both sides" if is_most else "Most own time of both sides together"
    most = f"rank {traced.rank}, whose {traced.window} minus exposed communication is {times}"
    return (f"{lead}: {most}; the median of the others is {others_times}. The step of this rank is explained.",)


def slowest_words(
    a_name: str, b_name: str, traced: Traced, deltas: Sequence[RankDelta], comparison: Comparison | None
) -> tuple[str, ...]:
    """Return which rank is slowest on each side, as the lead has it, where another is explained by another delta."""
    if len(deltas) < 2 or comparison is None or comparison.unprofiled:
        return ()
    apart_ns, most_ns = abs(comparison.delta_ns - traced.delta_ns), max(abs(comparison.delta_ns), abs(traced.delta_ns))
    slowest = max(deltas, key=lambda rank: rank.a_ns).rank, max(deltas, key=lambda rank: rank.b_ns).rank
    if slowest == (traced.rank, traced.rank) or apart_ns <= _SAME_DELTA * most_ns:
        return ()
    of_sides = " and ".join(f"rank {rank} in {name}" for rank, name in zip(slowest, (a_name, b_name), strict=True))
    if slowest[0] == slowest[1]:
        of_sides = f"rank {slowest[0]} on both sides"
    delta = format_value(traced.delta_ns, Unit.DELTA_NS)
    return (f"The slowest is {of_sides}; rank {traced.rank}, which is explained, differs by {delta} {traced.per}.",)


def _only_rank_text(delta: RankDelta, cells: Sequence[CellDelta], waited_in: str, per: str) -> str:
    is_slower = delta.own_delta_ns > 0
    sign = 1 if is_slower else -1
    own_cells = [
        cell for cell in cells if not cell.category.startswith("exposed_") or cell.category == "exposed_memcpy"
    ]
    most = max(own_cells, key=lambda cell: sign * cell.delta_ns)
    part = f"{format_value(most.delta_ns, Unit.DELTA_NS)} of {most.category.replace('_', '-')} time in {most.phase}"
    change = f"{'slower' if is_slower else 'faster'}, by {_time(abs(delta.own_delta_ns))} {per}"
    text = f"Only rank {delta.rank} is {change} of its own time: {part}"
    wait = "wait for it" if is_slower else "wait that much less for it"
    return f"{text}; the other ranks {wait} in {waited_in}." if waited_in else f"{text}."


def _time(ns: float) -> str:
    return format_value(ns, Unit.NS)


_NOTABLE = 0.2
"""Part of the difference of the step from which a phase is named."""
_MOST_PHASES = 3


def unprofiled_phase_words(a: Side, b: Side, names: tuple[str, str], steps: Comparison | None) -> tuple[str, ...]:
    """Return `In the unprofiled steps, dataload_wait takes 1.20 ms instead of 71.4 ms.`, with the loader's line.

    Times are means over ranks, and of the halves of the pairs that decided by their estimator; of separate recordings
    means of all steps. Nothing where no step is unprofiled, the verdict claims no difference, no phase has a notable
    part of it, or the phases differ the other way: rare long steps, which the verdict is robust to.
    """
    if steps is None or not steps.unprofiled or not steps.is_seen:
        return ()
    of_a, of_b = _in_pairs(a.run, b.run) or _means(a.run, b.run)
    deltas = {name: of_b[name] - of_a[name] for name in of_a if name in of_b}
    least = _NOTABLE * abs(steps.delta_ns)
    notable = [name for name in sorted(deltas, key=lambda name: -abs(deltas[name])) if abs(deltas[name]) >= least]
    if len(deltas) < 2 or not notable or sum(deltas.values()) * steps.delta_ns <= 0:
        return ()
    parts = [
        f"{name} takes {format_value(of_b[name], Unit.NS)} instead of {format_value(of_a[name], Unit.NS)}"
        for name in notable[:_MOST_PHASES]
    ]
    slower, name = (b, names[1]) if deltas[notable[0]] > 0 else (a, names[0])
    line = worker_line(slower.ranks.job) if notable[0] == DATALOAD_WAIT else ""
    where = f" (in {name}, {line})" if line else ""
    return (f"In the unprofiled steps, {', '.join(parts)}{where}.",)


def _means(a: Run, b: Run) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean ns of each phase on either side, over ranks and steps."""
    timings = [run.timings for run in (a, b)]
    of_a, of_b = ({phase.name: phase.mean for phase in unprofiled_phases(each)} if each else {} for each in timings)
    return of_a, of_b


def _in_pairs(a: Run, b: Run) -> tuple[dict[str, float], dict[str, float]] | None:
    """Return ns of each phase of A's half of the pairs of both, and that with the shift to B; None without such pairs.

    Other steps of A were beside other arms, at other times, and the machine may have been busier then.
    """
    if a.timings is None or b.timings is None or a.manifest is None or a.manifest != b.manifest or a.arm == b.arm:
        return None
    ours, theirs = _halves(a.timings, b.arm), _halves(b.timings, a.arm)
    pairs, of_a, of_b = np.intersect1d(ours.pair, theirs.pair, assume_unique=True, return_indices=True)
    if not len(pairs):
        return None
    b_second = theirs.half[of_b] == 1
    means: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for phase in ours.ns.keys() & theirs.ns.keys():
        a_ns, b_ns = ours.ns[phase][of_a], theirs.ns[phase][of_b]
        shift = shift_of_pairs(np.where(b_second, b_ns - a_ns, a_ns - b_ns), b_second)
        means[0][phase] = location_of_pairs(a_ns, b_second)
        means[1][phase] = means[0][phase] + shift.delta
    return means


@frozen(eq=False)
class _Halves:
    """Halves of P pairs: `pair`, `half` int64[P], number and 0 or 1; `ns` int64[P] of each phase, mean of the steps."""

    pair: NDArray[np.int64]
    half: NDArray[np.int64]
    ns: dict[str, NDArray[np.int64]]


def _halves(timings: Timings, partner: str) -> _Halves:
    """Return the halves of an arm in pairs with another one, by the number of the pair."""
    steps, none = timings.of_pairs, np.empty(0, np.int64)
    if steps is None:
        return _Halves(none, none, {})
    chosen = np.flatnonzero(np.array([each == partner for each in steps.partners], np.bool_))
    pair, first, of_step = np.unique(steps.pair[chosen], return_index=True, return_inverse=True)
    num = np.bincount(of_step, minlength=len(pair))
    ns = {
        phase.name: np.rint(
            np.bincount(of_step, weights=phase.ns[:, chosen].mean(axis=0), minlength=len(pair)) / num
        ).astype(np.int64)
        for phase in unprofiled_phases(timings)
    }
    return _Halves(pair, steps.half[chosen[first]], ns)


def doubt(traced: Traced, comparison: Comparison | None, steps: Comparison | None) -> str:
    """Return why durations of the traced steps are no evidence; "" where they are.

    `comparison` is of samples where the sides differ in them, `steps` always of steps, as the traced delta is.
    """
    delta = format_value(traced.delta_ns, Unit.DELTA_NS)
    left_out = "trust which ops were added or removed, not their durations (--full)."
    if _is_outside(traced, steps):
        return f"The traced delta, {delta}, is outside the unprofiled 95 % CI: {left_out}"
    if steps is not None and steps.steps_apart and not _is_alike(traced.delta_ns, steps.delta_ns):
        unprofiled = format_value(steps.delta_ns, Unit.DELTA_NS)
        return f"The traced delta, {delta}, is not that of the unprofiled steps, {unprofiled}: {left_out}"
    if comparison is not None and comparison.unprofiled and not comparison.is_seen:
        if comparison.verdict.is_open:
            return f"The unprofiled steps do not decide, and the traced {delta} is no evidence by itself: {left_out}"
        return f"The unprofiled steps show no difference that the traced {delta} could explain: {left_out}"
    return ""


def _is_outside(traced: Traced, steps: Comparison | None) -> bool:
    if steps is None or not steps.unprofiled or steps.ci95_ns is None:
        return False
    low, high = steps.ci95_ns
    return not low <= traced.delta_ns <= high


def _is_alike(traced_ns: int, unprofiled_ns: int) -> bool:
    """Return whether one is at most twice the other."""
    low, high = sorted((traced_ns, unprofiled_ns), key=abs)
    return low * high > 0 and 2 * abs(low) >= abs(high)
