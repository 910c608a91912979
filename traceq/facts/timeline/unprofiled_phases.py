"""Phases of the unprofiled steps of a job, and the pace that its slowest rank sets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.timeline.phases import OTHER
from traceq.frozen import frozen
from traceq.model import Manifest, Timings


@frozen(eq=False)
class UnprofiledPhase:
    """One phase of S steps on R ranks: `ns` int64[R, S] by the clock of the steps, `host_ns` likewise by the host's."""

    name: str
    ns: NDArray[np.int64]
    host_ns: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Mean over ranks and steps in ns."""
        return float(self.ns.mean())

    @property
    def median(self) -> float:
        """Median over ranks and steps in ns."""
        return float(np.median(self.ns))

    @property
    def p95(self) -> float:
        """95th percentile over ranks and steps in ns."""
        return float(np.percentile(self.ns, 95))

    def of(self, rank: int) -> UnprofiledPhase:
        """Return the same phase on one rank."""
        return UnprofiledPhase(self.name, self.ns[rank : rank + 1], self.host_ns[rank : rank + 1])


@frozen
class Pace:
    """Step time of a job.

    `step_ns` mean step of the slowest rank; `ranks_ns` mean step of each rank; `samples` per step, 0 if unknown.
    """

    step_ns: float
    slowest: int
    ranks_ns: tuple[float, ...]
    samples: int

    @property
    def samples_per_second(self) -> float | None:
        """Throughput at the pace of the slowest rank; None if the number of samples is unknown."""
        return self.samples / (self.step_ns * 1e-9) if self.samples else None


def unprofiled_phases(timings: Timings) -> tuple[UnprofiledPhase, ...]:
    """Return each phase in order, then `other`, the time outside all phases; they add up to the step."""
    index = [number for number, name in enumerate(timings.phases) if name != OTHER]
    named = [UnprofiledPhase(timings.phases[n], timings.phase_ns[..., n], timings.host_phase_ns[..., n]) for n in index]
    rest = timings.step_ns - timings.phase_ns[..., index].sum(axis=2)
    host_rest = timings.host_step_ns - timings.host_phase_ns[..., index].sum(axis=2)
    return (*named, UnprofiledPhase(OTHER, rest, host_rest))


def pace_of(manifest: Manifest | None, arm_name: str, timings: Timings) -> Pace:
    """Return the job's step time from the unprofiled steps of an arm."""
    arm = manifest.arm(arm_name) if manifest else None
    ranks_ns = timings.step_ns.mean(axis=1)
    slowest = int(ranks_ns.argmax())
    return Pace(float(ranks_ns[slowest]), slowest, tuple(ranks_ns.tolist()), arm.samples_per_step if arm else 0)
