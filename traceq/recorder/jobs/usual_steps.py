"""The usual events of a job's steps, by arm: those of its first steps, until the job goes over to others.

An arm may change the events of its steps, such as the number of batches that are accumulated: if hardly any of its
first steps has those of the pattern, its usual events are its own. Jobs change theirs, too: a moving average or a
teacher joins after a warm-up, an agent that acted at random asks its network from then on. After many steps in a row of
which none was usual for its arm, most of these are; where numbers of forwards differ from step to step, with those in a
row as one. All arms change together, so that no pair has steps from before and from behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from traceq.recorder.jobs.pattern_learning import LEARNED_STEPS
from traceq.recorder.jobs.step_pattern import StepPattern, joined_forwards, short_text

__all__ = ["UsualSteps"]

_Events = tuple[str, ...]

_LEAST_SHARE_OF_PATTERN = 0.25
_OTHER_STEPS = 24
"""Of each arm that runs; more than the steps of a pair."""
_MOST = 0.75
"""Part of the other steps of each arm that have to be alike to be its usual ones."""
_LEAST_KINDS = 3
"""Kinds of steps from which numbers of forwards are taken for chance: two may be one kind after the other."""


@dataclass(slots=True)
class UsualSteps:
    """The usual events of the steps of each arm; `on_change` is told `L F f B O0 instead of L F B O0`, once."""

    pattern: StepPattern
    on_change: Callable[[str], None]
    _usual: dict[str, _Events] = field(default_factory=dict)
    _first: dict[str, Counter[_Events]] = field(default_factory=dict)  # steps of arms whose events are not known
    _others: list[tuple[str, _Events]] = field(default_factory=list)  # since the last usual one
    _joins_forwards: bool = False

    def __post_init__(self) -> None:
        self._joins_forwards = self.pattern.joins_forwards

    def events(self, arm: str) -> _Events:
        """Return those of an arm, of the pattern until they are known."""
        return self._usual.get(arm, self.pattern.events)

    def add(self, arm: str, step: Sequence[str]) -> bool:
        """Add the events of a step that has ended; return whether they are the usual ones of its arm."""
        events = tuple(joined_forwards(step)) if self._joins_forwards else tuple(step)
        usual = self._usual.get(arm)
        if usual is None:
            return events == self._learn(arm, events)
        if events == usual:
            self._others.clear()
            return True
        self._others.append((arm, events))
        if len(self._others) >= _OTHER_STEPS * len({arm for arm, _ in self._others}):
            self._learn_again()
        return False

    def _learn(self, arm: str, events: _Events) -> _Events:
        """Add one of the first steps of an arm; return its usual events, which stay after some of them."""
        first = self._first.setdefault(arm, Counter())
        first[events] += 1
        usual, _ = first.most_common(1)[0]
        if first[self.pattern.events] >= _LEAST_SHARE_OF_PATTERN * first.total():
            usual = self.pattern.events
        if first.total() >= LEARNED_STEPS:
            self._usual[arm] = usual
        return usual

    def _learn_again(self) -> None:
        """Take the events of most of the other steps for the usual ones, if most of each arm are alike.

        The first steps of arms that have none among these are still to come.
        """
        is_chance = self._joins_forwards or len({events for _, events in self._others}) >= _LEAST_KINDS
        for joins in (self._joins_forwards, True) if is_chance else (False,):
            by_arm: dict[str, Counter[_Events]] = {}
            for arm, events in self._others:
                by_arm.setdefault(arm, Counter())[tuple(joined_forwards(events)) if joins else events] += 1
            most = {arm: counts.most_common(1)[0] for arm, counts in by_arm.items()}
            if all(num >= _MOST * by_arm[arm].total() for arm, (_, num) in most.items()):
                usual = {arm: events for arm, (events, _) in most.items()}
                changes = {f"{short_text(usual[arm])} instead of {short_text(self.events(arm))}" for arm in usual}
                self._usual, self._joins_forwards = usual, joins
                self._first.clear()
                for change in sorted(changes):
                    self.on_change(change)
                break
        self._others.clear()
