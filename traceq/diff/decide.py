"""Which step times the verdict comes from: unprofiled pairs where there are any, else what there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.diff.result import Comparable
from traceq.links.steps import steps
from traceq.model import Caveat, Pairs, Run
from traceq.stats import Comparison, compare_pairs, compare_values, job_ns

__all__ = ["decide", "decide_cpu"]


def decide(a: Run, b: Run, can: Comparable, threshold_pct: float) -> Comparison | None:
    """B's step against A's; None where neither side has a step.

    In this order: interleaved pairs of the two arms; the median unprofiled step of two separate processes; the traced
    steps, which are profiled and few.
    """
    pairs, control = _pairs_of(a, b)
    if pairs is not None:
        return compare_pairs(pairs, control=control, threshold_pct=threshold_pct)
    of_a, of_b = _unprofiled_median(a), _unprofiled_median(b)
    if of_a is not None and of_b is not None:
        found = compare_values(np.array([of_a]), np.array([of_b]), threshold_pct=threshold_pct)
        if a.manifest is not None and b.manifest is not None and a.manifest.run_id == b.manifest.run_id:
            text = f"{a.arm} and {b.arm} were never paired with each other: the medians of their steps are compared"
            found = replace(found, caveats=(*found.caveats, Caveat("not_paired", text)))
    elif a.traces and b.traces:
        ranks = set(a.ranks) & set(b.ranks) or {*a.ranks, *b.ranks}
        found = _of_means(_job_steps(a, ranks), _job_steps(b, ranks), threshold_pct)
        text = "the step times are those of the traced windows: profiled, few, and not interleaved"
        found = replace(found, caveats=(*found.caveats, Caveat("profiled_steps", text)))
    else:
        return None
    return found if can.ok else _refused(found, can)


def decide_cpu(a: Run, b: Run, threshold_pct: float) -> Comparison | None:
    """The same for the CPU time of the main thread, which waits for nobody; None unless interleaved and recorded."""
    pairs, control = (_on_cpu(pairs) for pairs in _pairs_of(a, b))
    return compare_pairs(pairs, control=control, threshold_pct=threshold_pct) if pairs is not None else None


def _on_cpu(pairs: Pairs | None) -> Pairs | None:
    if pairs is None or pairs.first_cpu_ns is None or pairs.second_cpu_ns is None:
        return None
    return replace(pairs, first_ns=pairs.first_cpu_ns, second_ns=pairs.second_cpu_ns)


def _of_means(a: NDArray[np.int64], b: NDArray[np.int64], threshold_pct: float) -> Comparison:
    """Traced steps: their means, which are what the cells and causes add up to."""
    found = compare_values(a, b, profiled=True, threshold_pct=threshold_pct)
    return replace(found, a_ns=round(a.mean()), b_ns=round(b.mean()), delta_ns=found.mean_delta_ns)


def _refused(found: Comparison, can: Comparable) -> Comparison:
    reason = "not comparable: " + "; ".join(can.reasons)
    return replace(found, verdict=replace(found.verdict, name="inconclusive", reason=reason, pairs_needed=None))


def _pairs_of(a: Run, b: Run) -> tuple[Pairs | None, Pairs | None]:
    """Pairs of these two arms of one run, B's time minus A's, and the run's A/A control."""
    if a.manifest is None or b.manifest is None or a.manifest.run_id != b.manifest.run_id:
        return None, None
    known = {(pairs.a, pairs.b): pairs for pairs in (*a.pairs, *b.pairs) if pairs.b_second.size}
    control = next((pairs for pairs in known.values() if pairs.is_control), None)
    if (a.arm, b.arm) in known:
        return known[a.arm, b.arm], control
    if (b.arm, a.arm) in known:
        turned = known[b.arm, a.arm]
        return replace(turned, a=turned.b, b=turned.a, b_second=~turned.b_second), control
    return None, control


def _unprofiled_median(run: Run) -> float | None:
    """Median unprofiled step of the run's arm, as one number: all of it comes from one process."""
    values = [job_ns(pairs, of_b=second) for pairs in run.pairs for second in _sides(pairs, run.arm)]
    return float(np.median(np.concatenate(values))) if values else None


def _sides(pairs: Pairs, arm: str) -> list[bool]:
    """False for the A side, True for the B side, as far as they ran this arm; the control counts once."""
    return [pairs.b == arm] if pairs.b_second.size and arm in (pairs.a, pairs.b) else []


def _job_steps(run: Run, ranks: set[int]) -> NDArray[np.int64]:
    """int64[K] ns: the job's traced steps, each as long as on the slowest of these ranks."""
    windows = []
    for trace in (trace for trace in run.traces if trace.rank in ranks):
        found = steps(trace)
        windows.append((found.window[:, 1] - found.window[:, 0])[found.counted])
    shortest = min(len(window) for window in windows)
    job: NDArray[np.int64] = np.max([window[-shortest:] for window in windows], axis=0)
    return job
