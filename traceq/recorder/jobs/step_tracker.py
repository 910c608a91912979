"""The step that a training loop is in, by its events: first learned, then compared with the usual one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic

from traceq.model import OTHER_STEPS, WorkKind
from traceq.recorder.jobs.step_pattern import (
    BACKWARD,
    BATCH,
    EPOCH,
    FORWARD,
    JOINING,
    LEARNED_STEPS,
    LEAST_KINDS,
    NO_GRAD_FORWARD,
    SAVE,
    Form,
    StepPattern,
    learn_pattern,
    short_text,
    split_steps,
)

_Events = tuple[str, ...]

SILENT_S = 10.0
"""Seconds without a step that counts after which the recorder says what it sees instead."""
_LEAST_SHARE_OF_PATTERN = 0.25
_LEAST_OTHERS = 3
"""Steps in a row, of each arm that runs, from which others are learned where steps are long."""
_MOST = 0.75
"""Part of the other steps of each arm that have to be alike to be its usual ones."""


@dataclass(slots=True)
class UsualSteps:
    """The usual events of the steps of each arm; `say` is told of others that take their place, or do not.

    An arm may change the events of its steps, such as the number of batches that are accumulated: if hardly any of its
    first steps has those of the pattern, its usual events are its own. Jobs change theirs, too: a moving average or a
    teacher joins after a warm-up, an agent that acted at random asks its network from then on, a warm-up accumulates
    more and more batches. After some steps in a row of which none was usual for its arm, most of these are; where they
    differ from each other, with batches or forwards in a row as one. All arms change together, and only after more
    steps than a pair has, so that no pair has steps from before and from behind.

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
            if self._others and usual is not None:
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
        is_chance = self.form != Form() or len({events for _, events in self._others}) >= LEAST_KINDS
        for form in (self.form, *map(self._allowed, JOINING)) if is_chance else (Form(),):
            by_arm: dict[str, Counter[_Events]] = {}
            for arm, events in self._others:
                by_arm.setdefault(arm, Counter())[form.of(events)] += 1
            most = {arm: counts.most_common(1)[0] for arm, counts in by_arm.items()}
            usual = {arm: events for arm, (events, _) in most.items()}
            # Where an arm also did the usual steps of another, the job changed between their turns, and not the arm.
            is_of_arm = all(counts.keys() & usual.values() == {usual[arm]} for arm, counts in by_arm.items())
            if is_of_arm and all(num >= _MOST * by_arm[arm].total() for arm, (_, num) in most.items()):
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
        """Return the usual events of all arms that are known, as `batch, forward, backward, optimizer`."""
        return " or ".join(sorted(set(map(short_text, self._usual.values())))) or short_text(self.pattern.events)

    def _allowed(self, form: Form) -> Form:
        """Return a form, without one that steps of another number of batches have, where arms are compared."""
        return form if not self.steps_of_pair else Form(joins_forwards=form.joins_forwards)


_OTHER_WORK = (EPOCH, NO_GRAD_FORWARD, SAVE)
_MANY_EVENTS = 64
"""Events of a step, if also more than four times those of the last one, from which steps may begin elsewhere by now."""


@dataclass(slots=True)
class StepTracker:
    """Events of a running loop: first collected until the pattern is known, then compared with it, step by step.

    Which events are usual may differ between arms, and change; where a step begins remains the same.
    `arm`: the one that the step runs which has begun. `is_in_optimizer`: an optimizer has begun its step, and not ended
    it: one with closures runs many backwards before its event. `size_of_step`: backward passes of the step before the
    last begin, at least 1. `steps_of_pair`: see `UsualSteps`. `say` is told of usual steps that become others, and of
    what is seen while none counts. `on_other_work` is called where a step goes over to what is in no usual one.
    """

    pattern: StepPattern | None = None
    arm: str = ""
    is_in_optimizer: bool = False
    size_of_step: int = 1
    steps_of_pair: int = 0
    say: Callable[[str], None] = lambda _: None
    on_other_work: Callable[[], None] = lambda: None
    clock: Callable[[], float] = monotonic
    _events: list[str] = field(default_factory=list)
    _anchor_passed: bool = False
    _part_begin: int = 0  # index in `_events`
    _num_parts: int = 0  # that have ended in this step
    _last_step: list[str] = field(default_factory=list)
    _usual: UsualSteps | None = None
    _looks_at: int = _MANY_EVENTS  # number of events of a step from which it is looked at again
    _long_since_s: float | None = None  # since when it has so many
    _silent_s: float = SILENT_S
    _is_learned_again: bool = False  # where the last step ended

    def add(self, event: str) -> bool:
        """Add an event; return True if it begins a step of a known pattern."""
        pattern = self.pattern or self._learn_before(event)
        events = self._events
        if pattern is None:
            ends = event.startswith("O") or event == BACKWARD
            self._anchor_passed = ends or (self._anchor_passed and event not in (BATCH, FORWARD))
            events.append(event)
            return False
        begins = (
            self._anchor_passed
            and (event == pattern.start or pattern.starts_with(event))  # the first alone costs no call
            and self._ends_step(pattern)
        )
        if begins or (len(events) >= self._looks_at and self._look_again(event)):
            begins, self._last_step, self._events = True, events, [event]
            self.size_of_step = events.count(BACKWARD) or 1
            self._part_begin = self._num_parts = 0
            self._looks_at, self._long_since_s = max(_MANY_EVENTS, 4 * len(events)), None
        else:
            events.append(event)
        if event == pattern.anchor:
            self._anchor_passed = True
        if event in _OTHER_WORK and event not in pattern.events:
            self.on_other_work()
        return begins

    def _ends_step(self, pattern: StepPattern) -> bool:
        """Note that a part of the step has ended, and return whether it was the last one.

        Where the first part comes unexpectedly, as something was skipped before it, a step begins there.
        """
        self._anchor_passed = False
        if not pattern.parts:
            return True
        part = tuple(self._events[self._part_begin :])
        if part == pattern.parts[0] != pattern.parts[self._num_parts]:
            self._num_parts = 0
        self._num_parts += 1
        self._part_begin = len(self._events)
        return self._num_parts >= len(pattern.parts)

    def assume_batches(self, num_seen: int) -> None:
        """Let every batch begin a step: the whole step is compiled, and shows no other event."""
        self.pattern = StepPattern((BATCH,), BATCH, BATCH, num_seen, num_seen, num_batches=1)
        self._anchor_passed = True

    def _learn_before(self, event: str) -> StepPattern | None:
        """Learn the pattern if this event may begin a step; until then any optimizer is taken for the anchor."""
        may_begin = event in (BATCH, FORWARD, BACKWARD) and self._anchor_passed
        if may_begin and not (self.is_in_optimizer and not self._has_stepped()):
            self.pattern = learn_pattern(self._events, event)
        if self.pattern is not None:
            parts = split_steps(self._events, self.pattern)
            self._anchor_passed = self.pattern.anchor in parts[-1]
            self._num_parts = _place(parts, self.pattern.parts)
            self._events = list(chain(*parts[len(parts) - 1 - self._num_parts :]))
            self._part_begin = len(self._events) - len(parts[-1])
        return self.pattern

    def _has_stepped(self) -> bool:
        """Return whether an optimizer has ended a step: until then backwards of one closure would be taken for steps.

        Where the closure has the only forward of the loop, its steps begin there.
        """
        return any(event.startswith("O") for event in self._events)

    @property
    def has_forward(self) -> bool:
        """Whether a forward with gradients was seen, while the pattern is not known."""
        return FORWARD in self._events

    def was_regular(self) -> bool:
        """Return whether the step before the last begin had the usual events of its arm; call it once per step."""
        if self._is_learned_again:
            self._is_learned_again = False
            return False
        return (self._usual or self._usual_steps()).add(self.arm, self._last_step)

    def kind_of_step(self) -> WorkKind:
        """Return what the step before the last begin did besides what usual ones do."""
        usual = self._usual_steps()
        events = usual.events(self.arm)
        more = Counter(usual.form.of(self._last_step))
        more.subtract(events)
        # of joined batches the first after an evaluation is a part of its own: `(L f S L F B)*`
        for part in [each for each in more if each.startswith("(") and more[each] > 0]:
            more += Counter(re.findall(r"\w+", part)) - Counter(re.findall(r"\w+", " ".join(events)))
        kinds: WorkKind = ("evaluation" if more[BATCH] > 0 else "rollout", "checkpoint", "epoch")
        events = (NO_GRAD_FORWARD, SAVE, EPOCH)
        return tuple(kind for kind, event in zip(kinds, events, strict=True) if more[event] > 0) or OTHER_STEPS

    def num_batches(self, arm: str) -> float:
        """Return how many batches a usual step of an arm asks for, on average."""
        return self._usual_steps().num_batches(arm)

    def optimizer_steps(self, arm: str) -> dict[str, int]:
        """Return how often each optimizer, `O0` or `O1`, steps in a usual step of an arm."""
        return Counter(event for event in self._usual_steps().events(arm) if event.startswith("O"))

    def _usual_steps(self) -> UsualSteps:
        assert self.pattern is not None
        if self._usual is None:
            self._usual = UsualSteps(self.pattern, self._note, self.steps_of_pair, self.clock)
        return self._usual

    def _look_again(self, event: str) -> bool:
        """Return whether this event begins a step of another pattern, learned as no step has begun for ten seconds.

        The optimizer of the anchor may step no more, such as that of a first stage of training.
        """
        if self._long_since_s is None:
            self._long_since_s = self.clock()
        self._looks_at += _MANY_EVENTS
        past_s = self.clock() - self._long_since_s
        if past_s < self._silent_s or self.is_in_optimizer or event not in (BATCH, FORWARD, BACKWARD):
            return False
        before, pattern = self.pattern, learn_pattern(self._events, event)
        if before is None or pattern is None:
            self._looks_at, self._silent_s = 2 * len(self._events), 2 * past_s
            self._note(f"no step has begun for {past_s:.0f} s; the last events are {self.text}")
            return False
        self.pattern, self._usual, self._is_learned_again, self._anchor_passed = pattern, None, True, False
        self._note(f"the usual steps of the job are others now: {pattern.text} instead of {short_text(before.events)}")
        return True

    def _note(self, text: str) -> None:
        self.say(f"traceq: note: {text}")

    @property
    def text(self) -> str:
        """Events so far, while the pattern is not known."""
        return short_text(self._events[-3 * LEARNED_STEPS :])


def _place(parts: Sequence[tuple[str, ...]], expected: Sequence[tuple[str, ...]]) -> int:
    """Return how many parts of the last step are before the last part seen, which may not have ended."""
    for num in range(len(expected)):
        if len(parts) > num and tuple(parts[len(parts) - 1 - num : -1]) == tuple(expected[:num]):
            last = parts[-1]
            if last == expected[num][: len(last)] and (num or len(parts) < 2 or parts[-2] == expected[-1]):
                return num
    return 0
