"""What an unprofiled step of a job is made of, and how long it takes on its slowest rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.model import Manifest, Timings

__all__ = ["OTHER", "Pace", "UnprofiledPhase", "pace_of", "unprofiled_phases"]

OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)
class UnprofiledPhase:
    """One phase of S steps on R ranks: `ns` int64[R, S] by the clock of the steps, `host_ns` likewise by the host's."""

    name: str
    ns: NDArray[np.int64]
    host_ns: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Mean over ranks and steps, ns."""
        return float(self.ns.mean())

    @property
    def median(self) -> float:
        """Median of them, ns."""
        return float(np.median(self.ns))

    @property
    def p95(self) -> float:
        """Their 95th percentile, ns."""
        return float(np.percentile(self.ns, 95))

    def of(self, rank: int) -> UnprofiledPhase:
        """The same of one rank."""
        return UnprofiledPhase(self.name, self.ns[rank : rank + 1], self.host_ns[rank : rank + 1])


@dataclass(frozen=True, slots=True)
class Pace:
    """A step of all ranks together: `step_ns` is the mean of the slowest one, `ranks_ns` those of all; `samples` that a
    step trains on, 0 where nobody said.
    """

    step_ns: float
    slowest: int
    ranks_ns: tuple[float, ...]
    samples: int

    @property
    def samples_per_second(self) -> float | None:
        """What the job gets done at the pace of its slowest rank; None without a number of samples."""
        return self.samples / (self.step_ns * 1e-9) if self.samples else None


def unprofiled_phases(timings: Timings) -> tuple[UnprofiledPhase, ...]:
    """Each phase in order, and `other`, the time in none: together they are the step."""
    at = [number for number, name in enumerate(timings.phases) if name != OTHER]
    found = [UnprofiledPhase(timings.phases[n], timings.phase_ns[..., n], timings.host_phase_ns[..., n]) for n in at]
    rest = timings.step_ns - timings.phase_ns[..., at].sum(axis=2)
    return (*found, UnprofiledPhase(OTHER, rest, np.zeros_like(rest) if timings.by_device else rest))


def pace_of(manifest: Manifest | None, arm_name: str, timings: Timings) -> Pace:
    """The job's step, from the unprofiled steps of an arm."""
    arm = manifest.arm(arm_name) if manifest else None
    ranks_ns = timings.step_ns.mean(axis=1)
    slowest = int(ranks_ns.argmax())
    return Pace(float(ranks_ns[slowest]), slowest, tuple(ranks_ns.tolist()), arm.samples_per_step if arm else 0)
