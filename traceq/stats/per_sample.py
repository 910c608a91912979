"""Steps of different batch or world size: B's times scaled to as many samples as A's step has.

Times stay in ns per step, as integer ns per sample would be too coarse for the threshold.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.model import Caveat, Pairs
from traceq.stats.sentences import FOR_SAMPLES
from traceq.stats.verdict import SampleKind

__all__ = [
    "Samples",
    "kind_at_samples",
    "note_samples",
    "samples_apart",
    "scaled",
    "scaled_control",
    "scaled_pairs",
]

Samples = tuple[int, int]
"""Samples per step of A and of B."""


def samples_apart(a: int, b: int) -> Samples | None:
    """Return the samples per step where both are known (not 0) and differ; then the time per sample is compared."""
    return (a, b) if a and b and a != b else None


def scaled(b: NDArray[np.int64], samples: Samples | None) -> NDArray[np.int64]:
    """int64 ns: B's times scaled to A's number of samples."""
    if samples is None:
        return b
    times: NDArray[np.int64] = np.rint(b * (samples[0] / samples[1])).astype(np.int64)
    return times


def scaled_pairs(pairs: Pairs, samples: Samples | None) -> Pairs:
    """Return the pairs with B's halves scaled to A's number of samples."""
    first = np.where(pairs.b_second, pairs.first_ns, scaled(pairs.first_ns, samples))
    second = np.where(pairs.b_second, scaled(pairs.second_ns, samples), pairs.second_ns)
    return replace(pairs, first_ns=first, second_ns=second)


def scaled_control(control: Pairs | None, pairs: Pairs, samples: Samples | None) -> Pairs | None:
    """Return the A/A control scaled likewise; both of its halves are of one arm, which may be this comparison's B."""
    if control is None or control.a == pairs.a:
        return control
    first, second = (scaled(times, samples) for times in (control.first_ns, control.second_ns))
    return replace(control, first_ns=first, second_ns=second)


def note_samples(caveats: tuple[Caveat, ...], samples: Samples | None) -> tuple[Caveat, ...]:
    """Return the caveats; those that contain a time say for how many samples it is."""
    if samples is None:
        return caveats
    timed = ("below_noise_floor", "carried_over", "mean_disagrees", "ranks_disagree")
    note = f" ({FOR_SAMPLES.format(num=samples[0])})"
    return tuple(Caveat(caveat.code, caveat.text + note * (caveat.code in timed)) for caveat in caveats)


def kind_at_samples(kind: SampleKind, samples: Samples | None) -> SampleKind:
    """Return the kind of values, its scope saying for how many samples the times are."""
    if samples is None:
        return kind
    return replace(kind, scope=f"{kind.scope}{FOR_SAMPLES.format(num=samples[0])}, ")
