"""Where the steps of a training loop begin, learned from the events of its first steps.

Events are those of any framework: L a batch is requested, F and f the forward of a model with and without gradients,
B a backward, O0, O1 ... the steps of optimizers, S a checkpoint is saved. The anchor is the optimizer that steps most
rarely; a step begins with the first start event after it. The end of the optimizer's step would be too early: what
many loops do behind it, such as gathering metrics, belongs to the same step. Where a loop prefetches, so that the batch
requested in a step is that of the next one, the forward begins a step; where neither is seen, as methods of a model are
called instead of its forward, the backward does. Without an optimizer of torch, or with one that
is compiled, the anchor is the backward; in a step that is compiled as a whole, the batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BACKWARD", "BATCH", "FORWARD", "LEARNED_STEPS", "StepPattern", "StepTracker", "short_text"]

BACKWARD, BATCH, FORWARD = "B", "L", "F"
LEARNED_STEPS = 8
_SKIPPED_STEPS = 2  # they may initialize
_MAX_OPTIMIZER_EVENTS = 40 * LEARNED_STEPS
_BACKWARDS_WITHOUT_OPTIMIZER = 16  # then it is not torch's, or compiled
_MIN_ALIKE = 0.5
_LEAST_SHARE_OF_PATTERN = 0.25


@dataclass(frozen=True, slots=True)
class StepPattern:
    """Events of a usual step; its first start event after the `anchor` begins the next one.

    `num_alike` of `num_seen` steps had these events.
    """

    events: tuple[str, ...]
    anchor: str
    start: str
    num_alike: int
    num_seen: int

    @property
    def text(self) -> str:
        """The events as `L F B O0 (6 of 6 alike)`."""
        return f"{short_text(self.events)} ({self.num_alike} of {self.num_seen} alike)"

    @property
    def is_regular(self) -> bool:
        """True if all steps seen are alike."""
        return self.num_alike == self.num_seen

    @property
    def is_reliable(self) -> bool:
        """True if at least half of the steps are alike; else most pairs would hold an irregular step."""
        return self.num_alike >= _MIN_ALIKE * self.num_seen


def short_text(events: Sequence[str]) -> str:
    """Return events separated by spaces, with groups that repeat as `(F B)x4`."""
    text = "".join(f"{event} " for event in events)
    return re.sub(r"((?:\w+ )+?)\1{2,}", _repeated, text).strip()


def _repeated(match: re.Match[str]) -> str:
    return f"({match[1].strip()})x{len(match[0]) // len(match[1])} "


@dataclass(slots=True)
class StepTracker:
    """Events of a running loop: first collected until the pattern is known, then compared with it, step by step.

    An arm may change the events of its steps, such as the number of batches that are accumulated: if hardly any of its
    first steps has those of the pattern, its usual events are its own. Where a step begins remains the same.
    `arm`: the one that the step runs which has begun. `is_in_optimizer`: an optimizer has begun its step, and not ended
    it: one with closures runs many backwards before its event.
    """

    pattern: StepPattern | None = None
    arm: str = ""
    is_in_optimizer: bool = False
    _events: list[str] = field(default_factory=list)
    _anchor_passed: bool = False
    _last_step: list[str] = field(default_factory=list)
    _steps_of_arms: dict[str, Counter[tuple[str, ...]]] = field(default_factory=dict)
    _usual: dict[str, Sequence[str]] = field(default_factory=dict)

    def add(self, event: str) -> bool:
        """Add an event; return True if it begins a step of a known pattern."""
        pattern = self.pattern or self._learn_before(event)
        if pattern is None:
            ends = event.startswith("O") or event == BACKWARD
            self._anchor_passed = ends or (self._anchor_passed and event not in (BATCH, FORWARD))
            self._events.append(event)
            return False
        begins = self._anchor_passed and event == pattern.start
        if begins:
            self._last_step, self._events = self._events, []
            self._anchor_passed = False
        if event == pattern.anchor:
            self._anchor_passed = True
        self._events.append(event)
        return begins

    def assume_batches(self, num_seen: int) -> None:
        """Let every batch begin a step: the whole step is compiled, and shows no other event."""
        self.pattern = StepPattern((BATCH,), BATCH, BATCH, num_seen, num_seen)
        self._anchor_passed = True

    def _learn_before(self, event: str) -> StepPattern | None:
        """Learn the pattern if this event may begin a step; until then any optimizer is taken for the anchor."""
        may_begin = event in (BATCH, FORWARD, BACKWARD) and self._anchor_passed
        if may_begin and not (self.is_in_optimizer and not self._has_stepped()):
            self.pattern = _learn(self._events, event)
        if self.pattern is not None:
            self._events = list(_split(self._events, self.pattern.start, self.pattern.anchor)[-1])
            self._anchor_passed = self.pattern.anchor in self._events
        return self.pattern

    def _has_stepped(self) -> bool:
        """Return whether an optimizer has ended a step: until then backwards of one closure would be taken for steps.

        Where the closure has the only forward of the loop, its steps begin there.
        """
        return any(event.startswith("O") for event in self._events)

    def was_regular(self) -> bool:
        """Return whether the step before the last begin had the usual events of its arm; call it once per step."""
        usual = self._usual.get(self.arm)
        return self._last_step == (self._learn_usual() if usual is None else usual)

    def num_batches(self, arm: str) -> int:
        """Return how many batches a usual step of an arm asks for."""
        assert self.pattern is not None
        return self._usual.get(arm, self.pattern.events).count(BATCH)

    def _learn_usual(self) -> list[str]:
        """Add the last step to those of its arm; return its usual events, which are final after some steps."""
        steps = self._steps_of_arms.setdefault(self.arm, Counter())
        steps[tuple(self._last_step)] += 1
        usual, _ = steps.most_common(1)[0]
        if self.pattern is not None and steps[self.pattern.events] >= _LEAST_SHARE_OF_PATTERN * steps.total():
            usual = self.pattern.events
        if steps.total() >= LEARNED_STEPS:
            self._usual[self.arm] = list(usual)
        return list(usual)

    @property
    def text(self) -> str:
        """Events so far, while the pattern is not known."""
        return short_text(self._events[-3 * LEARNED_STEPS :])


def _learn(events: Sequence[str], event: str) -> StepPattern | None:
    """Return the pattern of the events of at least eight steps, None if there are not enough of them.

    Or if the next `event` cannot begin a step: a backward can where neither batches nor forwards are seen.
    """
    counts = Counter(event for event in events if event.startswith("O"))
    if not counts and events.count(BACKWARD) >= _BACKWARDS_WITHOUT_OPTIMIZER:
        counts = Counter({BACKWARD: events.count(BACKWARD)})
    if sum(counts.values()) >= _MAX_OPTIMIZER_EVENTS:  # optimizers that stepped only at the start
        counts = Counter({event: num for event, num in counts.items() if num >= LEARNED_STEPS})
    fewest = min(counts.values(), default=0)
    if fewest < LEARNED_STEPS:
        return None
    start = BATCH if events.count(BATCH) >= fewest - 1 else FORWARD if FORWARD in events else BACKWARD
    if (event == BACKWARD) != (start == BACKWARD):
        return None
    pattern = _pattern(events, start, [event for event, num in counts.items() if num == fewest])
    return _pattern(events, FORWARD, [pattern.anchor]) if _prefetches(pattern) else pattern


def _pattern(events: Sequence[str], start: str, anchors: Sequence[str]) -> StepPattern:
    """Return the pattern with the anchor that a step's start follows most often."""
    anchor = max(anchors, key=lambda optimizer: (_num_followed_by(start, optimizer, events), optimizer))
    steps = _split(events, start, anchor)[_SKIPPED_STEPS:]
    usual, num_alike = Counter(steps).most_common(1)[0]
    return StepPattern(usual, anchor, start, num_alike, len(steps))


def _prefetches(pattern: StepPattern) -> bool:
    """Return True if the forward of a step comes before its batch, which is then that of the next step."""
    if pattern.start != BATCH or pattern.anchor not in pattern.events:
        return False
    first = next(event for event in pattern.events if event in (FORWARD, BACKWARD, pattern.anchor))
    return first != FORWARD and FORWARD in pattern.events[pattern.events.index(pattern.anchor) :]


def _num_followed_by(start: str, optimizer: str, events: Sequence[str]) -> int:
    """Return how often a step's start is the first start or optimizer event after this optimizer's."""
    num, follows = 0, False
    for event in events:
        if event == start or event.startswith("O"):
            num += follows and event == start
            follows = event == optimizer
    return num + follows


def _split(events: Sequence[str], start: str, anchor: str) -> list[tuple[str, ...]]:
    """Return the events of each step, the last one included: it has ended, too."""
    steps: list[list[str]] = [[]]
    anchor_passed = False
    for event in events:
        if anchor_passed and event == start:
            steps.append([])
            anchor_passed = False
        anchor_passed = anchor_passed or event == anchor
        steps[-1].append(event)
    return [tuple(step) for step in steps]
