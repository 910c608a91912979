"""Steps of different batch or world size: B's times brought to as many samples as A's step has.

That keeps the nanoseconds of a step, where those of a sample would be too coarse for a threshold of 0.5 %.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.model import Caveat, Pairs
from traceq.stats.verdict import SampleKind

__all__ = ["Samples", "for_samples_of_a", "of_samples", "samples_apart", "scaled", "scaled_control", "with_measure"]

Samples = tuple[int, int]
"""Samples of one step of A and of B."""


def samples_apart(a: int, b: int) -> Samples | None:
    """Samples of a step of A and of B where both are known (not 0) and differ: then the time of one is compared."""
    return (a, b) if a and b and a != b else None


def scaled(b: NDArray[np.int64], samples: Samples | None) -> NDArray[np.int64]:
    """int64 ns: what B's times would be at A's number of samples."""
    if samples is None:
        return b
    times: NDArray[np.int64] = np.rint(b * (samples[0] / samples[1])).astype(np.int64)
    return times


def for_samples_of_a(pairs: Pairs, samples: Samples | None) -> Pairs:
    """Pairs whose B halves last as long as A's number of samples takes."""
    first = np.where(pairs.b_second, pairs.first_ns, scaled(pairs.first_ns, samples))
    second = np.where(pairs.b_second, scaled(pairs.second_ns, samples), pairs.second_ns)
    return replace(pairs, first_ns=first, second_ns=second)


def scaled_control(control: Pairs | None, pairs: Pairs, samples: Samples | None) -> Pairs | None:
    """The A/A control in the same measure; both of its halves are of one arm, which may be this comparison's B."""
    if control is None or control.a == pairs.a:
        return control
    first, second = (scaled(times, samples) for times in (control.first_ns, control.second_ns))
    return replace(control, first_ns=first, second_ns=second)


def with_measure(caveats: tuple[Caveat, ...], samples: Samples | None) -> tuple[Caveat, ...]:
    """The doubts; those that give a time say for how many samples it is."""
    if samples is None:
        return caveats
    timed = ("below_noise_floor", "carried_over", "mean_disagrees", "ranks_disagree")
    measure = f" (for the {samples[0]:,} samples of A's step)"
    return tuple(Caveat(doubt.code, doubt.text + measure * (doubt.code in timed)) for doubt in caveats)


def of_samples(kind: SampleKind, samples: Samples | None) -> SampleKind:
    """The kind of values, with words that say for how many samples the reason's times are."""
    if samples is None:
        return kind
    return replace(kind, scope=f"{kind.scope.strip()}, for the {samples[0]:,} samples of A's step, ".lstrip(", "))
