"""Who came when to each collective of a simulated job, by the true clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from .program import Collective
from .timeline import Timeline


@dataclass
class Arrival:
    """One collective: what it is, its phase and step, and by rank when it began to wait there and when it was over."""

    what: Collective
    phase: str
    step: int
    came: dict[int, int] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)

    @property
    def skew(self) -> int:
        """From the first rank to the last."""
        return max(self.came.values()) - min(self.came.values())

    @property
    def transfer(self) -> int:
        """What the last to come needs."""
        return min(self.over[rank] - self.came[rank] for rank in self.came)

    def wait(self, rank: int) -> int:
        """How long a rank waits for the last one."""
        return max(self.came.values()) - self.came[rank]


def arrivals(timelines: list[Timeline]) -> list[Arrival]:
    """Collectives in order of issue."""
    met: dict[tuple[str, int, int], Arrival] = {}
    for timeline in timelines:
        for issue in timeline.issues:
            key = (issue.what.group, issue.step, issue.place)
            arrival = met.setdefault(key, Arrival(issue.what, issue.phase, issue.step))
            arrival.came[timeline.rank], arrival.over[timeline.rank] = issue.work.start, issue.work.end
    return list(met.values())
