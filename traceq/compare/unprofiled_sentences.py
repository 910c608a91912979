"""Where the unprofiled steps of two sides differ: by phase, and in the data loader by the line of its workers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.compare.side import Side
from traceq.facts.ranks.loading_workers import worker_line
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.frozen import frozen
from traceq.model import Run, Timings
from traceq.stats import Comparison
from traceq.stats.hodges_lehmann import location_of_pairs, shift_of_pairs
from traceq.units import Unit, format_value

__all__ = ["unprofiled_phase_words"]

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
