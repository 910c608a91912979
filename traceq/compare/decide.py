"""Which step times the verdict comes from: unprofiled pairs where there are any, else what there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.compare.result import Comparable
from traceq.compare.side import Side
from traceq.facts.timeline.steps import steps
from traceq.model import BUILT_APART, Caveat, Pairs, Run
from traceq.stats import Comparison, Samples, compare_pairs, compare_values

__all__ = ["compare_sides", "decide_cpu", "separate_builds"]

LAYOUT_PCT = 2.0
"""Percent of a step by which equal trainings of one process may differ: more than `benchmarks/layout.py` found."""


def compare_sides(
    a: Side, b: Side, can: Comparable, threshold_pct: float, samples: Samples | None
) -> Comparison | None:
    """B's step against A's, or with `samples` B's time a sample; None where neither side has a step.

    In this order: interleaved pairs of the two arms; the median unprofiled steps of separate processes; the traced
    steps, which are profiled and few.
    """
    pairs, control = _pairs_of(a, b)
    of_a, of_b = a.steps_ns, b.steps_ns
    if pairs is not None:
        found = compare_pairs(pairs, control=control, threshold_pct=threshold_pct, samples=samples)
    elif of_a.size and of_b.size:
        found = compare_values(of_a, of_b, threshold_pct=threshold_pct, samples=samples)
        found = replace(found, caveats=(*found.caveats, *_not_paired(a, b), *_one_after_the_other(a, b)))
        found = _advised(found, a, b)
    elif a.run.traces and b.run.traces:
        ranks = set(a.run.ranks) & set(b.run.ranks) or {*a.run.ranks, *b.run.ranks}
        found = _of_means(_job_steps(a.run, ranks), _job_steps(b.run, ranks), threshold_pct, samples)
        text = "the step times are those of the traced windows: profiled, few, and not interleaved"
        found = replace(found, caveats=(*found.caveats, Caveat("profiled_steps", text)))
    else:
        return None
    return found if can.ok else _refused(found, can)


def decide_cpu(a: Side, b: Side, threshold_pct: float, samples: Samples | None) -> Comparison | None:
    """The same for the CPU time of the main thread, which waits for nobody; None unless interleaved and recorded."""
    pairs, control = (_on_cpu(pairs) for pairs in _pairs_of(a, b))
    if pairs is None:
        return None
    return compare_pairs(pairs, control=control, threshold_pct=threshold_pct, samples=samples)


def separate_builds(a: Side, b: Side, *found: Comparison | None) -> tuple[Caveat, ...]:
    """Arms of one process with a model each, whose difference is found and small: it may be where the models lie."""
    told = a.run.manifest.environment.get(BUILT_APART, "") if a.run.manifest else ""
    if a.is_repeated or b.is_repeated or not _of_one_run(a.run, b.run) or a.run.arm == b.run.arm:
        return ()
    if not {a.run.arm, b.run.arm} <= set(str(told).split()):
        return ()
    claims = (one for one in found if one and one.verdict.name in ("material", "detectable"))
    if all(abs(one.delta_pct) > LAYOUT_PCT for one in claims):
        return ()
    text = (
        f"{a.run.arm} and {b.run.arm} were built apart, and two builds of the same differ by up to {LAYOUT_PCT:g} %, "
        "for where they lie in memory: so small a difference may be that; several recordings a side would tell"
    )
    return (Caveat("built_apart", text),)


def _not_paired(a: Side, b: Side) -> tuple[Caveat, ...]:
    """Two arms of one process that never took turns."""
    if a.is_repeated or b.is_repeated or not _of_one_run(a.run, b.run) or _are_apart(a.run):
        return ()
    names = f"{a.run.arm} and {b.run.arm}"
    return (
        Caveat("not_paired", f"{names} were never paired with each other: the medians of their steps are compared"),
    )


def _one_after_the_other(a: Side, b: Side) -> tuple[Caveat, ...]:
    """All processes of one side ran before all of the other: what changed meanwhile is in the difference."""
    times = [[run.manifest.started if run.manifest else "" for run in side.runs] for side in (a, b)]
    if not (a.is_repeated and b.is_repeated and all(times[0]) and all(times[1])):
        return ()
    if max(times[0]) >= min(times[1]) and max(times[1]) >= min(times[0]):
        return ()
    text = "all processes of one side ran before the other's: what changed meanwhile is in it; let the sides alternate"
    return (Caveat("not_interleaved", text),)


def _are_apart(run: Run) -> bool:
    return run.manifest is not None and run.manifest.apart


def _advised(found: Comparison, a: Side, b: Side) -> Comparison:
    """Arms that ran apart, too rarely for an interval: what to record instead."""
    if found.ci95_ns or not (_are_apart(a.run) and _are_apart(b.run)):
        return found
    reason = f"{found.verdict.reason} (traceq record --replicates 4)"
    return replace(found, verdict=replace(found.verdict, reason=reason))


def _on_cpu(pairs: Pairs | None) -> Pairs | None:
    if pairs is None or pairs.first_cpu_ns is None or pairs.second_cpu_ns is None:
        return None
    return replace(pairs, first_ns=pairs.first_cpu_ns, second_ns=pairs.second_cpu_ns)


def _of_means(a: NDArray[np.int64], b: NDArray[np.int64], threshold_pct: float, samples: Samples | None) -> Comparison:
    """Traced steps: their means, which are what the cells and causes add up to."""
    found = compare_values(a, b, profiled=True, threshold_pct=threshold_pct, samples=samples)
    b_ns = round(b.mean() * samples[0] / samples[1]) if samples else round(b.mean())
    return replace(found, a_ns=round(a.mean()), b_ns=b_ns, delta_ns=found.mean_delta_ns)


def _refused(found: Comparison, can: Comparable) -> Comparison:
    reason = "not comparable: " + "; ".join(can.reasons)
    return replace(found, verdict=replace(found.verdict, name="inconclusive", reason=reason, pairs_needed=None))


def _of_one_run(a: Run, b: Run) -> bool:
    return a.manifest is not None and b.manifest is not None and a.manifest.run_id == b.manifest.run_id


def _pairs_of(a_side: Side, b_side: Side) -> tuple[Pairs | None, Pairs | None]:
    """Pairs of these two arms of one run, B's time minus A's, and the run's A/A control."""
    a, b = a_side.run, b_side.run
    if a_side.is_repeated or b_side.is_repeated or not _of_one_run(a, b):
        return None, None
    known = {(pairs.a, pairs.b): pairs for pairs in (*a.pairs, *b.pairs) if pairs.b_second.size}
    control = next((pairs for pairs in known.values() if pairs.is_control), None)
    if (a.arm, b.arm) in known:
        return known[a.arm, b.arm], control
    if (b.arm, a.arm) in known:
        turned = known[b.arm, a.arm]
        return replace(turned, a=turned.b, b=turned.a, b_second=~turned.b_second), control
    return None, control


def _job_steps(run: Run, ranks: set[int]) -> NDArray[np.int64]:
    """int64[K] ns: the job's traced steps, each as long as on the slowest of these ranks."""
    windows = []
    for trace in (trace for trace in run.traces if trace.rank in ranks):
        found = steps(trace)
        windows.append((found.window[:, 1] - found.window[:, 0])[found.counted])
    shortest = min(len(window) for window in windows)
    job: NDArray[np.int64] = np.max([window[-shortest:] for window in windows], axis=0)
    return job
