"""The time of steps that do more or less than the others, and so do not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.model import OddSteps
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.timing.stopwatch import StepTime

__all__ = ["TimeOfSteps"]

_LARGE_SHARE = 0.1
"""Part of the time from which steps that do not count are named: the job spends it, whatever its usual step takes."""


@dataclass(slots=True)
class TimeOfSteps:
    """Numbers and times of steps, usual and odd ones; `loading_ns` of the latter is for batches."""

    num_odd: int = 0
    num_usual: int = 0
    odd_ns: int = 0
    usual_ns: int = 0
    loading_ns: int = 0

    def add(self, times: Sequence[StepTime], are_usual: Sequence[bool]) -> None:
        """Add steps, of each of which is known whether it was usual."""
        for time, is_usual in zip(times, are_usual, strict=True):
            if is_usual:
                self.num_usual += 1
                self.usual_ns += time.wall_ns
            else:
                self.num_odd += 1
                self.odd_ns += time.wall_ns
                self.loading_ns += time.phases.get(DATALOAD_WAIT, 0)

    @property
    def is_mostly_odd(self) -> bool:
        """Whether odd steps take a tenth of the time or more."""
        return self.num_odd > 0 and self.odd_ns >= _LARGE_SHARE * (self.odd_ns + self.usual_ns)

    def note(self, rank: Rank) -> None:
        """Print and store how long the odd steps took, where that is much of the time."""
        if not self.is_mostly_odd:
            return
        odd = OddSteps(
            odd_steps=self.num_odd,
            all_steps=self.num_odd + self.num_usual,
            odd_steps_ns=self.odd_ns,
            all_steps_ns=self.odd_ns + self.usual_ns,
            odd_loading_ns=self.loading_ns,
            renewed_workers=rank.workers.num_renewed,
        )
        rank.facts.update(odd.facts())
        if rank.plan.process <= 0:  # the other processes of an arm say the same
            rank.say(f"traceq: note: {odd.text}")
