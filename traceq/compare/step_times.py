"""Choose the step times that the verdict comes from: unprofiled pairs where there are any."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.compare.busy_machine import is_by_other_processes
from traceq.compare.caveats import not_interleaved, not_paired
from traceq.compare.result import Comparable
from traceq.compare.sentences import BY_REPLICATES, BY_TURNS
from traceq.compare.side import Side, of_one_run
from traceq.compare.statement import doubtful
from traceq.model import Manifest, Pairs
from traceq.stats import Comparison, Samples, answer_together, compare_pairs, compare_values, samples_apart
from traceq.stats.means import are_means_apart
from traceq.stats.verdict import PROCESSES

_FEWEST_STEPS, _MANY_STEPS = 2, 4
"""Traced steps from which they tell how much they differ by themselves, and from which their means are tested."""
_FIFTHS = 5
"""Parts of a recording: of equal steps all five are above those of the other in 1 of 126, or below."""


def compare_sides(
    a: Side, b: Side, comparability: Comparable, threshold_pct: float, samples: Samples | None
) -> Comparison | None:
    """Return B's step against A's, or with `samples` B's time per sample; None where a side has no step.

    Sources in order of preference: interleaved pairs of the two arms; the median unprofiled step of each process; the
    traced steps, which are profiled and few.
    """
    pairs, control = _pairs_of(a, b)
    of_a, of_b = a.steps_ns, b.steps_ns
    if pairs is not None:
        comparison = compare_pairs(pairs, control=control, threshold_pct=threshold_pct, samples=samples)
        comparison = _as_one_question(comparison, pairs, a.run.pairs, a.run.manifest)
    elif of_a.size and of_b.size:
        comparison = compare_values(of_a, of_b, threshold_pct=threshold_pct, samples=samples)
        caveats = (*comparison.caveats, *not_paired(a, b), *not_interleaved(a, b))
        comparison = _with_advice(replace(comparison, caveats=caveats), a, b)
        if not comparison.ci95_ns and abs(comparison.delta_pct) >= threshold_pct:
            is_apart = _are_apart(a, b, samples) and not is_by_other_processes(a, b, comparison)
            comparison = replace(comparison, steps_apart=is_apart)
    elif a.run.traces and b.run.traces:
        comparison = _compare_means(*_traced_steps(a, b), threshold_pct, samples)
        comparison = replace(comparison, caveats=(*comparison.caveats, doubtful("profiled_steps")))
    else:
        return None
    return comparison if comparability.ok else _refused(comparison, comparability)


def ranges_of_steps(a: Side, b: Side) -> dict[str, int]:
    """Return the shortest and longest step of both sides, ns by name, of traced steps that do not tell them apart.

    Few of them do where their ranges are apart, more where the interval of the difference of their means excludes 0.
    """
    if not (a.run.traces and b.run.traces) or any(side.ranks.job.ranks[0].steps.labels for side in (a, b)):
        return {}  # steps of an inference engine are of several kinds
    if samples_apart(a.samples, b.samples):
        return {}
    ours, theirs = sides = _traced_steps(a, b)
    num = min(map(len, sides))
    if num < _FEWEST_STEPS:
        return {}
    is_apart = _lie_apart(ours, theirs)
    if are_means_apart(ours.astype(np.float64), theirs.astype(np.float64)) if num >= _MANY_STEPS else is_apart:
        return {}
    return {
        f"{end}_step_{name}_ns": int(ns)
        for name, steps_ns in (("a", ours), ("b", theirs))
        for end, ns in (("least", steps_ns.min()), ("most", steps_ns.max()))
    }


def compare_cpu(
    a: Side, b: Side, comparability: Comparable, threshold_pct: float, samples: Samples | None
) -> Comparison | None:
    """Return the comparison of the main thread's CPU time, which excludes blocked time; None without recorded pairs."""
    pairs, control = (_on_cpu(pairs) for pairs in _pairs_of(a, b))
    if pairs is None:
        return None
    comparison = compare_pairs(pairs, control=control, threshold_pct=threshold_pct, samples=samples)
    of_cpu = [each for each in map(_on_cpu, a.run.pairs) if each]
    comparison = _as_one_question(comparison, pairs, of_cpu, a.run.manifest)
    return comparison if comparability.ok else _refused(comparison, comparability)


def _as_one_question(
    comparison: Comparison, pairs: Pairs, pairs_of_run: Sequence[Pairs], manifest: Manifest | None
) -> Comparison:
    """Return the comparison with its verdict among all questions that the run asks; its first arm is the main one.

    The control, an arm against itself, is none of them.
    """
    if pairs.is_control:
        return comparison
    arms = manifest.arms if manifest else ()
    order = {arm.name: position for position, arm in enumerate(arms)}
    samples = {arm.name: arm.samples_per_step for arm in arms}
    questions = [each for each in pairs_of_run if each.b_second.size and not each.is_control]
    questions.sort(key=lambda each: order.get(each.b, len(order)))
    same = [position for position, each in enumerate(questions) if {each.a, each.b} == {pairs.a, pairs.b}]
    if not same:  # an older reading of the run, which lacks these pairs
        return comparison
    answers = [
        comparison
        if position == same[0]
        else compare_pairs(
            each,
            threshold_pct=comparison.verdict.threshold_pct,
            samples=samples_apart(samples.get(each.a, 0), samples.get(each.b, 0)),
        )
        for position, each in enumerate(questions)
    ]
    return answer_together(answers)[same[0]]


def _with_advice(comparison: Comparison, a: Side, b: Side) -> Comparison:
    """Return the comparison with the way to record enough, where there are too few processes for an interval."""
    if comparison.ci95_ns:
        return comparison
    if of_one_run(a, b):
        how = BY_REPLICATES if a.is_isolated and b.is_isolated else "{reason}"
    else:
        how = "{reason}" if a.is_repeated or b.is_repeated else BY_TURNS
    paths = " ".join(shlex.quote(f"{side.folder}*") for side in (a, b))
    reason = how.format(reason=comparison.verdict.reason, num=PROCESSES.fewest, paths=paths)
    return replace(comparison, verdict=replace(comparison.verdict, reason=reason))


def _on_cpu(pairs: Pairs | None) -> Pairs | None:
    if pairs is None or pairs.first_cpu_ns is None or pairs.second_cpu_ns is None:
        return None
    return replace(pairs, first_ns=pairs.first_cpu_ns, second_ns=pairs.second_cpu_ns)


def _compare_means(
    a: NDArray[np.int64], b: NDArray[np.int64], threshold_pct: float, samples: Samples | None
) -> Comparison:
    """Return the comparison of traced steps by their means, to which cells and causes add up."""
    comparison = compare_values(a, b, profiled=True, threshold_pct=threshold_pct, samples=samples)
    b_ns = round(b.mean() * samples[0] / samples[1]) if samples else round(b.mean())
    return replace(comparison, a_ns=round(a.mean()), b_ns=b_ns, delta_ns=comparison.mean_delta_ns)


def _refused(comparison: Comparison, comparability: Comparable) -> Comparison:
    reason = "not comparable: " + "; ".join(comparability.reasons)
    verdict = replace(comparison.verdict, name="inconclusive", reason=reason, pairs_needed=None)
    return replace(comparison, verdict=verdict, steps_apart=False)


def _are_apart(a: Side, b: Side, samples: Samples | None) -> bool:
    """Return whether unprofiled steps of one side are longer than those of the other: per sample, if `samples` differ.

    Nine of ten of them, or in the mean each fifth of one recording than each of the other: of steps that come in
    bursts. So must be the median steps of all processes.
    """
    timings = [side.run.timings for side in (a, b)]
    ours, theirs = (each.step_ns.max(axis=0).astype(np.float64) if each else np.empty(0) for each in timings)
    if min(ours.size, theirs.size) < _FIFTHS:
        return False
    scale = samples[0] / samples[1] if samples else 1.0
    theirs *= scale
    tails = [np.percentile(steps_ns, (10, 90)) for steps_ns in (ours, theirs)]
    means = [np.array([fifth.mean() for fifth in np.array_split(steps_ns, _FIFTHS)]) for steps_ns in (ours, theirs)]
    medians = [a.steps_ns, b.steps_ns * scale]
    return any(_lie_apart(*pair) for pair in (tails, means)) and _lie_apart(*medians)


def _lie_apart(ours: NDArray[np.number], theirs: NDArray[np.number]) -> bool:
    return bool(ours.max() < theirs.min() or theirs.max() < ours.min())


def _pairs_of(a_side: Side, b_side: Side) -> tuple[Pairs | None, Pairs | None]:
    """Return the pairs of these two arms of one run, as A and B, and the A/A control of the run."""
    a, b = a_side.run, b_side.run
    if not of_one_run(a_side, b_side):
        return None, None
    by_arms = {(pairs.a, pairs.b): pairs for pairs in (*a.pairs, *b.pairs) if pairs.b_second.size}
    control = next((pairs for pairs in by_arms.values() if pairs.is_control), None)
    if (a.arm, b.arm) in by_arms:
        return by_arms[a.arm, b.arm], control
    if (b.arm, a.arm) in by_arms:
        swapped = by_arms[b.arm, a.arm]
        return replace(swapped, a=swapped.b, b=swapped.a, b_second=~swapped.b_second), control
    return None, control


def _traced_steps(a: Side, b: Side) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the traced steps of either side, of the ranks that both have, else of all: int64[K] ns."""
    ranks = set(a.run.ranks) & set(b.run.ranks) or {*a.run.ranks, *b.run.ranks}
    return _job_steps(a, ranks), _job_steps(b, ranks)


def _job_steps(side: Side, ranks: set[int]) -> NDArray[np.int64]:
    """int64[K] ns: the traced steps of the one of these ranks whose mean step is longest.

    Not the longest of each step: windows of ranks are shifted against each other, so that these add up to no time.
    """
    windows = []
    for all_steps in (rank.steps for rank in side.ranks.job.ranks if rank.rank in ranks):
        windows.append((all_steps.window[:, 1] - all_steps.window[:, 0])[all_steps.counted])
    return max(windows, key=lambda window: float(window.mean()))
