"""The usual events of a job's steps: those of its first steps, until the job goes over to others.

An arm may change the events of its steps, such as the number of batches that are accumulated: if hardly any of its
first steps has those of the pattern, its usual events are its own. Jobs change theirs, too: a moving average or a
teacher joins after a warm-up, an agent that acted at random asks its network from then on. After many steps in a row
that were not usual, the events of most of them are usual from there on; where numbers of forwards differ from step to
step, with those in a row as one. No pair has steps from before and from behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from traceq.recorder.jobs.pattern_learning import LEARNED_STEPS
from traceq.recorder.jobs.step_pattern import StepPattern, joined_forwards, short_text

__all__ = ["UsualSteps"]

_LEAST_SHARE_OF_PATTERN = 0.25
_OTHER_STEPS = 24
"""More than the steps of a pair."""


@dataclass(slots=True)
class UsualSteps:
    """The usual events of the steps of one arm; `on_change` is told `L F f B O0 instead of L F B O0`."""

    pattern: StepPattern
    on_change: Callable[[str], None]
    _events: tuple[str, ...] | None = None
    _joins_forwards: bool = False
    _first: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _others: list[tuple[str, ...]] = field(default_factory=list)  # since the last usual one

    @property
    def events(self) -> Sequence[str]:
        """Those of the pattern until the arm's own are known."""
        return self.pattern.events if self._events is None else self._events

    def add(self, step: Sequence[str]) -> bool:
        """Add the events of a step that has ended; return whether they are the usual ones."""
        events = tuple(joined_forwards(step)) if self._joins_forwards else tuple(step)
        if self._events is None:
            return events == self._learn(events)
        if events == self._events:
            self._others.clear()
            return True
        self._others.append(events)
        if len(self._others) == _OTHER_STEPS:
            self._learn_again()
        return False

    def _learn(self, events: tuple[str, ...]) -> tuple[str, ...]:
        """Add one of the first steps; return the usual events, which stay after some of them."""
        self._first[events] += 1
        usual, _ = self._first.most_common(1)[0]
        if self._first[self.pattern.events] >= _LEAST_SHARE_OF_PATTERN * self._first.total():
            usual = self.pattern.events
        if self._first.total() >= LEARNED_STEPS:
            self._events = usual
        return usual

    def _learn_again(self) -> None:
        """Take the events of most of the other steps for the usual ones, if most of them are alike."""
        before = self.events
        for joins in (self._joins_forwards, True):
            others = [tuple(joined_forwards(step)) if joins else step for step in self._others]
            usual, num = Counter(others).most_common(1)[0]
            if 2 * num > len(others):
                self._events, self._joins_forwards = usual, joins
                self.on_change(f"{short_text(usual)} instead of {short_text(before)}")
                break
        self._others.clear()
