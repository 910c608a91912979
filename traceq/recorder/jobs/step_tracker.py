"""The step that a training loop is in, by its events: first learned, then compared with the usual one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic

from traceq.model import OTHER_STEPS, WorkKind
from traceq.recorder.jobs.pattern_learning import LEARNED_STEPS, learn_pattern, split_steps
from traceq.recorder.jobs.step_pattern import (
    BACKWARD,
    BATCH,
    EPOCH,
    FORWARD,
    NO_GRAD_FORWARD,
    SAVE,
    StepPattern,
    short_text,
)
from traceq.recorder.jobs.usual_steps import SILENT_S, UsualSteps

__all__ = ["StepTracker"]

_OTHER_WORK = (EPOCH, NO_GRAD_FORWARD, SAVE)
_MANY_EVENTS = 64
"""Events of a step, if also more than four times those of the last one, from which steps may begin elsewhere by now."""


@dataclass(slots=True)
class StepTracker:
    """Events of a running loop: first collected until the pattern is known, then compared with it, step by step.

    Which events are usual may differ between arms, and change; where a step begins remains the same.
    `arm`: the one that the step runs which has begun. `is_in_optimizer`: an optimizer has begun its step, and not ended
    it: one with closures runs many backwards before its event. `steps_of_pair`: see `UsualSteps`. `say` is told of
    usual steps that become others, and of what is seen while none counts. `on_other_work` is called where a step goes
    over to what is in no usual one.
    """

    pattern: StepPattern | None = None
    arm: str = ""
    is_in_optimizer: bool = False
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
        if pattern is None:
            ends = event.startswith("O") or event == BACKWARD
            self._anchor_passed = ends or (self._anchor_passed and event not in (BATCH, FORWARD))
            self._events.append(event)
            return False
        begins = (
            self._anchor_passed
            and (event == pattern.start or pattern.starts_with(event))  # the first alone costs no call
            and self._ends_step(pattern)
        )
        if len(self._events) >= self._looks_at and not begins:
            begins = self._look_again(event)
        if begins:
            self._last_step, self._events = self._events, []
            self._part_begin = self._num_parts = 0
            self._looks_at, self._long_since_s = max(_MANY_EVENTS, 4 * len(self._last_step)), None
        if event == pattern.anchor:
            self._anchor_passed = True
        self._events.append(event)
        if event in _OTHER_WORK and event not in pattern.events:
            self.on_other_work()
        return begins

    def _ends_step(self, pattern: StepPattern) -> bool:
        """Note that a part of the step has ended, and return whether it was the last one.

        Where the first part comes unexpectedly, as something was skipped before it, a step begins there.
        """
        self._anchor_passed = False
        if pattern.parts:
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
        more = Counter(usual.form.of(self._last_step))
        more.subtract(usual.events(self.arm))
        kinds: WorkKind = ("evaluation" if more[BATCH] > 0 else "rollout", "checkpoint", "epoch")
        events = (NO_GRAD_FORWARD, SAVE, EPOCH)
        return tuple(kind for kind, event in zip(kinds, events, strict=True) if more[event] > 0) or OTHER_STEPS

    @property
    def size_of_step(self) -> int:
        """Number of backward passes of the step before the last begin, at least 1."""
        return self._last_step.count(BACKWARD) or 1

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
