"""What each rank spends a step on, by phase: a few numbers a rank, and all of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, ns_by_phase
from traceq.model import Trace

__all__ = ["PhaseTimes", "RankTimes", "phase_times", "side_by_side"]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseTimes:
    """One rank: `ns` float64[P, Doing], what it spends a counted step on in each of P `phases`, as it comes to them."""

    rank: int
    host: str
    phases: tuple[str, ...]
    ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RankTimes:
    """R ranks: `ns` float64[R, P, Doing] of a step in each of P `phases`; `hosts` "" where the trace does not tell."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    phases: tuple[str, ...]
    ns: NDArray[np.float64]

    @property
    def step(self) -> NDArray[np.float64]:
        """float64[R]: a whole step."""
        return np.asarray(self.ns.sum(axis=(1, 2)))

    @property
    def waits(self) -> NDArray[np.float64]:
        """float64[R, P]: time in which only collectives run."""
        return self.ns[:, :, int(TimeCategory.EXPOSED_COMM)]

    @property
    def own(self) -> NDArray[np.float64]:
        """float64[R, P]: all other time. Ranks that meet have equal steps, but not as much of their own to do."""
        return np.asarray(self.ns.sum(axis=2) - self.waits)


def phase_times(trace: Trace) -> PhaseTimes:
    """Of one rank."""
    found = phases(trace)
    order = [found.names.index(name) for name in found.in_order]
    ns = ns_by_phase(trace)[order] / int(steps(trace).counted.sum())
    return PhaseTimes(trace.rank, trace.host, found.in_order, ns)


def side_by_side(parts: Sequence[PhaseTimes]) -> RankTimes:
    """All ranks; phases in order of first sight, without those in which no rank spends time."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.phases))
    ns = np.zeros((len(parts), len(names), len(TimeCategory)))
    for at, part in enumerate(parts):
        ns[at, [names.index(name) for name in part.phases]] = part.ns
    told = np.flatnonzero(ns.any(axis=(0, 2)))
    kept = tuple(names[at] for at in told.tolist())
    return RankTimes(tuple(part.rank for part in parts), tuple(part.host for part in parts), kept, ns[:, told])
