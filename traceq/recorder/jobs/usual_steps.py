"""The usual events of a job's steps, by arm: those of its first steps, until the job goes over to others.

An arm may change the events of its steps, such as the number of batches that are accumulated: if hardly any of its
first steps has those of the pattern, its usual events are its own. Jobs change theirs, too: a moving average or a
teacher joins after a warm-up, an agent that acted at random asks its network from then on, a warm-up accumulates more
and more batches. After some steps in a row of which none was usual for its arm, most of these are; where they differ
from each other, with batches or forwards in a row as one. All arms change together, and only after more steps than a
pair has, so that no pair has steps from before and from behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from traceq.recorder.jobs.pattern_learning import JOINING, LEARNED_STEPS
from traceq.recorder.jobs.step_pattern import BATCH, Form, StepPattern, short_text

__all__ = ["SILENT_S", "UsualSteps"]

_Events = tuple[str, ...]

SILENT_S = 10.0
"""Seconds without a step that counts after which the recorder says what it sees instead."""
_LEAST_SHARE_OF_PATTERN = 0.25
_LEAST_OTHERS = 3
"""Steps in a row, of each arm that runs, from which others are learned where steps are long."""
_MOST = 0.75
"""Part of the other steps of each arm that have to be alike to be its usual ones."""
_LEAST_KINDS = 3
"""Kinds of steps from which numbers of batches or forwards are taken for chance: two may be one after the other."""


@dataclass(slots=True)
class UsualSteps:
    """The usual events of the steps of each arm; `say` is told of others that take their place, or do not.

    `steps_of_pair` of arms in turns, in whose halves no numbers of batches may differ; 0 without another arm.
    """

    pattern: StepPattern
    say: Callable[[str], None]
    steps_of_pair: int = 0
    clock: Callable[[], float] = monotonic
    form: Form = field(init=False)
    _usual: dict[str, _Events] = field(default_factory=dict)
    _first: dict[str, Counter[_Events]] = field(default_factory=dict)  # steps of arms whose events are not known
    _others: list[tuple[str, _Events]] = field(default_factory=list)  # since the last usual one
    _batches: dict[str, Counter[int]] = field(default_factory=dict)  # of usual steps, where they differ
    _usual_s: float = 0.0  # when the last usual step ended
    _silent_s: float = SILENT_S

    def __post_init__(self) -> None:
        self.form = self._allowed(self.pattern.form)
        self._usual_s = self.clock()

    def events(self, arm: str) -> _Events:
        """Return those of an arm, of the pattern until they are known."""
        return self._usual.get(arm, self.pattern.events)

    def num_batches(self, arm: str) -> float:
        """Return the mean number of batches of usual steps of an arm; that of the pattern before there is any."""
        if counts := self._batches.get(arm):
            return sum(num * times for num, times in counts.items()) / counts.total()
        events = self.events(arm)
        return self.pattern.num_batches if events == self.pattern.events else events.count(BATCH)

    def add(self, arm: str, step: Sequence[str]) -> bool:
        """Add the events of a step that has ended; return whether they are the usual ones of its arm."""
        events = self.form.of(step)
        usual = self._usual.get(arm)
        if events == (self._learn(arm, events) if usual is None else usual):
            if usual is not None:
                self._others.clear()
            self._usual_s, self._silent_s = self.clock(), SILENT_S
            if self.form.joins_batches:
                self._batches.setdefault(arm, Counter())[step.count(BATCH)] += 1
            return True
        if usual is not None:
            self._others.append((arm, tuple(step)))
            self._look_at_others()
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

    def _look_at_others(self) -> None:
        """Learn from the other steps once they are as many as the first ones, or long; say what they are if long."""
        past_s = self.clock() - self._usual_s
        num_arms = len({arm for arm, _ in self._others})
        least = LEARNED_STEPS if past_s < SILENT_S else _LEAST_OTHERS
        learned = (
            len(self._others) > self.steps_of_pair and len(self._others) >= least * num_arms and self._learn_again()
        )
        if past_s >= self._silent_s and not learned:
            self._silent_s = 2 * past_s
            latest = short_text(self._others[-1][1])
            self.say(f"no step has counted for {past_s:.0f} s: steps are {latest} now, and were {self._before()}")

    def _learn_again(self) -> bool:
        """Take the events of most of the other steps for the usual ones, if most of each arm are alike.

        The first steps of arms that have none among these are still to come.
        """
        is_chance = self.form != Form() or len({events for _, events in self._others}) >= _LEAST_KINDS
        for form in (self.form, *map(self._allowed, JOINING)) if is_chance else (Form(),):
            by_arm: dict[str, Counter[_Events]] = {}
            for arm, events in self._others:
                by_arm.setdefault(arm, Counter())[form.of(events)] += 1
            most = {arm: counts.most_common(1)[0] for arm, counts in by_arm.items()}
            if all(num >= _MOST * by_arm[arm].total() for arm, (_, num) in most.items()):
                usual = {arm: events for arm, (events, _) in most.items()}
                before = self._before()
                self._usual, self.form = usual, form
                self._first.clear()
                self._batches.clear()
                self._others.clear()
                self.say(f"the usual steps of the job are others now: {self._before()} instead of {before}")
                return True
        del self._others[: -LEARNED_STEPS * len(self._usual) - self.steps_of_pair]
        return False

    def _before(self) -> str:
        """Return the usual events of all arms that are known, as `L F B O0`."""
        return ", ".join(sorted(set(map(short_text, self._usual.values())))) or short_text(self.pattern.events)

    def _allowed(self, form: Form) -> Form:
        """Return a form, without one that steps of another number of batches have, where arms are compared."""
        return form if not self.steps_of_pair else Form(joins_forwards=form.joins_forwards)
