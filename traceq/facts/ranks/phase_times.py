"""Time of a step by phase and category, of one rank and of all ranks in one table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, ns_by_phase
from traceq.frozen import frozen
from traceq.model import Trace


@frozen(eq=False)
class PhaseTimes:
    """One rank: `ns` float64[P, TimeCategory] of a counted step in each of P `phases`, in order of occurrence."""

    rank: int
    host: str
    phases: tuple[str, ...]
    ns: NDArray[np.float64]


@frozen(eq=False)
class RankTimes:
    """R ranks: `ns` float64[R, P, TimeCategory] of a step in each of P `phases`; `hosts` "" where unknown."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    phases: tuple[str, ...]
    ns: NDArray[np.float64]

    @property
    def step(self) -> NDArray[np.float64]:
        """float64[R] ns: a whole step."""
        return np.asarray(self.ns.sum(axis=(1, 2)))

    @property
    def waits(self) -> NDArray[np.float64]:
        """float64[R, P] ns: exposed communication."""
        return self.ns[:, :, int(TimeCategory.EXPOSED_COMM)]

    @property
    def local(self) -> NDArray[np.float64]:
        """float64[R, P] ns: step time minus exposed communication; it may differ between ranks with equal steps."""
        return np.asarray(self.ns.sum(axis=2) - self.waits)


def phase_times(trace: Trace) -> PhaseTimes:
    """Return the times of one rank."""
    trace_phases = phases(trace)
    order = [trace_phases.names.index(name) for name in trace_phases.in_order]
    ns = ns_by_phase(trace)[order] / int(steps(trace).counted.sum())
    return PhaseTimes(trace.rank, trace.host, trace_phases.in_order, ns)


def rank_times(parts: Sequence[PhaseTimes]) -> RankTimes:
    """Return the times of all ranks; phases in order of first use, without those in which no rank spends time."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.phases))
    ns = np.zeros((len(parts), len(names), len(TimeCategory)))
    for index, part in enumerate(parts):
        ns[index, [names.index(name) for name in part.phases]] = part.ns
    used = np.flatnonzero(ns.any(axis=(0, 2)))
    used_names = tuple(names[index] for index in used.tolist())
    return RankTimes(tuple(part.rank for part in parts), tuple(part.host for part in parts), used_names, ns[:, used])
