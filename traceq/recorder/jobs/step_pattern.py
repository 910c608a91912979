"""The events of a usual step of a training loop, and where its steps begin, learned from the events of its first ones.

Events are those of any framework: E an epoch begins, L a batch is requested, F and f the forward of a model with and
without gradients, B a backward, O0, O1 ... the steps of optimizers, S a checkpoint is saved, C torch compiles. F* are
forwards in a row, of either kind; (L F B)* is what one batch needs, once or several times in a row.

The anchor is the optimizer that steps most rarely; a step begins with the first start event after it. The end of the
optimizer's step would be too early: what many loops do behind it, such as gathering metrics, belongs to the same step.
Where a loop prefetches, so that the batch requested in a step is that of the next one, the forward begins a step; where
neither is seen, as the loop calls functions instead of modules, the backward does. Without an optimizer of
torch, or with one that is compiled, the anchor is the backward; in a step that is compiled as a whole, the batch.

Where two kinds of steps take turns, the two are one step, each with its anchor.
Where numbers of batches differ, as of a warm-up that accumulates more and more of them, a step has any number of them,
(L F B)*. Where numbers of forwards differ, as of an agent that acts or a decoder that is called for each word, forwards
in a row count as one event, F*.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from time import monotonic

from traceq.recorder.process.progress_counters import append_message

BACKWARD, BATCH, COMPILE, EPOCH = "B", "L", "C", "E"
FORWARD, NO_GRAD_FORWARD, SAVE = "F", "f", "S"
FORWARDS = (FORWARD, NO_GRAD_FORWARD)
_ANY_FORWARDS = "F*"
_MIN_ALIKE = 0.5


@dataclass(frozen=True, slots=True)
class Form:
    """How far events of steps are told apart: forwards in a row may count as one, and batches of one step likewise."""

    joins_batches: bool = False
    joins_forwards: bool = False

    def of(self, events: Sequence[str]) -> tuple[str, ...]:
        """Return the events of a step in this form."""
        events = _joined_forwards(events) if self.joins_forwards else events
        return tuple(_joined_batches(events) if self.joins_batches else events)


@dataclass(frozen=True, slots=True)
class StepPattern:
    """Events of a usual step; its first start event after the `anchor` begins the next one.

    `num_alike` of `num_seen` steps had these events. `parts`: their events if a step has several, each with the anchor.
    `form` of the events; where forwards are joined, those without gradients start a step, too. `num_batches` of such
    steps, their mean. `latest`: events of the last steps if these are alike, and others.
    """

    events: tuple[str, ...]
    anchor: str
    start: str
    num_alike: int
    num_seen: int
    parts: tuple[tuple[str, ...], ...] = ()
    form: Form = Form()
    num_batches: float = 0.0
    latest: tuple[str, ...] = ()

    def starts_with(self, event: str) -> bool:
        """Return whether a step, or a part of one, may start with this event."""
        return event == self.start or (self.form.joins_forwards and self.start == FORWARD and event in FORWARDS)

    @property
    def text(self) -> str:
        """The events as `batch, forward, backward, optimizer (6 of 6 alike)`."""
        return f"{short_text(self.events)} ({self.num_alike} of {self.num_seen} alike)"

    @property
    def warm_up_note(self) -> str:
        """That the steps seen change, so that the pattern may be that of a warm-up; "" if they do not."""
        if self.latest:
            return f"the last steps are {short_text(self.latest)}: the pattern may hold for a warm-up only"
        if self.form.joins_batches:
            return "steps differ in their numbers of batches: these may be those of a warm-up only"
        return ""

    @property
    def num_passes(self) -> int:
        """How often a step runs a forward and a backward before its only optimizer steps; 1 of any other step."""
        passes = [event for event in self.events if event in (FORWARD, BACKWARD) or event.startswith("O")]
        number = len(passes) // 2
        return number if passes == [*[FORWARD, BACKWARD] * number, "O0"] else 1

    @property
    def is_regular(self) -> bool:
        """True if all steps seen are alike."""
        return self.num_alike == self.num_seen

    @property
    def is_reliable(self) -> bool:
        """True if at least half of the steps are alike; else most pairs would hold an irregular step."""
        return self.num_alike >= _MIN_ALIKE * self.num_seen

    @property
    def is_doubtful(self) -> bool:
        """True if hardly more than half of the steps are alike, as of two kinds that take turns."""
        return 2 * self.num_alike <= self.num_seen + 1


_WORDS = {
    EPOCH: "epoch",
    BATCH: "batch",
    FORWARD: "forward",
    NO_GRAD_FORWARD: "no-grad forward",
    BACKWARD: "backward",
    "O0": "optimizer",
    SAVE: "save",
    COMPILE: "compile",
}


def short_text(events: Sequence[str]) -> str:
    """Return events in words; groups that repeat are `(forward, backward)x4`, a second optimizer is `optimizer 1`."""
    text = "".join(f"{event} " for event in events)
    text = re.sub(r"(?<!\S)((?:[\w*]+ ){1,32}?)\1{2,}", _repeated, text).strip().replace(" ", ", ")
    return re.sub(r"\b[A-Zf]\d*", lambda event: _WORDS.get(event[0], f"optimizer {event[0][1:]}"), text)


def _repeated(match: re.Match[str]) -> str:
    return f"({match[1].strip()})x{len(match[0]) // len(match[1])} "


def _joined_forwards(events: Sequence[str]) -> list[str]:
    """Return events with one in the place of forwards in a row."""
    runs = groupby(events, lambda event: _ANY_FORWARDS if event in FORWARDS else event)
    return [each for event, run in runs for each in ([event] if event == _ANY_FORWARDS else run)]


def _joined_batches(events: Sequence[str]) -> list[str]:
    """Return events with one in the place of equal parts in a row that each end with a backward, as `(L F B)* O0`."""
    parts: list[list[str]] = [[]]
    for event in events:
        parts[-1].append(event)
        if event == BACKWARD or event.startswith("O"):
            parts.append([])
    joined: list[str] = []
    for part, run in groupby(parts):
        joined += [f"({' '.join(part)})*"] if part[-1:] == [BACKWARD] else chain.from_iterable(run)
    return joined


LEARNED_STEPS = 8
_SKIPPED_STEPS = 2  # they may initialize
_MAX_OPTIMIZER_EVENTS = 40 * LEARNED_STEPS
_BACKWARDS_WITHOUT_OPTIMIZER = 16  # then it is not torch's, or compiled
_NUM_PARTS = 2
_LEAST_REPEATS = 3
LEAST_KINDS = 3  # of two one may come after the other
_FIRST_NOTE_S = 10.0
"""Seconds of learning after which a line says what for; the next line comes after twice the time."""

JOINING = (Form(joins_batches=True), Form(joins_forwards=True), Form(joins_batches=True, joins_forwards=True))
"""Forms in which steps that differ may be alike, in the order in which they are tried."""


def learn_pattern(events: Sequence[str], event: str) -> StepPattern | None:
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
    start = BATCH if events.count(BATCH) >= fewest - 1 else FORWARD if 2 * events.count(FORWARD) > fewest else BACKWARD
    if (event == BACKWARD) != (start == BACKWARD):
        return None
    pattern = _pattern(events, start, [event for event, num in counts.items() if num == fewest])
    pattern = _pattern(events, FORWARD, [pattern.anchor]) if _prefetches(pattern) else pattern
    in_turns = _in_turns(events, pattern) if pattern.is_doubtful else None
    if in_turns is not None:
        return in_turns
    forms = (form for form in JOINING if not pattern.is_reliable or _varies(events, pattern, form))
    joined = (_most_common(replace(pattern, form=form), events) for form in forms)
    return next((each for each in joined if each.is_reliable), pattern)


def _pattern(events: Sequence[str], start: str, anchors: Sequence[str]) -> StepPattern:
    """Return the pattern with the anchor that a step's start follows most often."""
    anchor = max(anchors, key=lambda optimizer: (_num_followed_by(start, optimizer, events), optimizer))
    return _most_common(StepPattern((), anchor, start, 0, 0), events)


def _most_common(pattern: StepPattern, events: Sequence[str]) -> StepPattern:
    """Return the pattern with the events of most steps."""
    seen = split_steps(events, pattern)[_SKIPPED_STEPS:]
    steps = [pattern.form.of(step) for step in seen]
    usual, num_alike = Counter(steps).most_common(1)[0]
    num_batches = sum(step.count(BATCH) for step, form in zip(seen, steps, strict=True) if form == usual) / num_alike
    ended = steps if pattern.anchor in steps[-1] else steps[:-1]
    latest = ended[-1] if len(ended) > 2 and ended[-1] == ended[-2] != usual else ()
    return replace(
        pattern, events=usual, num_alike=num_alike, num_seen=len(steps), num_batches=num_batches, latest=latest
    )


def _in_turns(events: Sequence[str], pattern: StepPattern) -> StepPattern | None:
    """Return the pattern of which each step has two parts, the longer one first, if two kinds of them take turns."""
    parts = split_steps(events, pattern)[_SKIPPED_STEPS:]
    parts = parts if pattern.anchor in parts[-1] else parts[:-1]  # which has begun
    if len(parts) < _NUM_PARTS * _LEAST_REPEATS or parts[_NUM_PARTS:] != parts[:-_NUM_PARTS]:
        return None
    first = max(range(_NUM_PARTS), key=lambda index: len(parts[index]))
    step = tuple(parts[first : first + _NUM_PARTS])
    num_seen, usual = (len(parts) - first) // _NUM_PARTS, tuple(chain(*step))
    of_steps = replace(pattern, events=usual, parts=step, num_batches=usual.count(BATCH), latest=())
    return replace(of_steps, num_alike=num_seen, num_seen=num_seen)


def _varies(events: Sequence[str], pattern: StepPattern, form: Form) -> bool:
    """Return True for steps that are all alike in a form that joins events.

    They are of several kinds, or of two of which each is at least a third: a second one for a metric is rarer.
    """
    kinds = set(split_steps(events, pattern)[_SKIPPED_STEPS:])
    is_mixed = 3 * pattern.num_alike <= 2 * pattern.num_seen
    is_varied = len(kinds) >= (2 if is_mixed else LEAST_KINDS)
    return is_varied and len(set(map(form.of, kinds))) == 1


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


def split_steps(events: Sequence[str], pattern: StepPattern) -> list[tuple[str, ...]]:
    """Return the events of each step or part of one, the last one included: it has ended, too."""
    steps: list[list[str]] = [[]]
    anchor_passed = False
    for event in events:
        if anchor_passed and pattern.starts_with(event):
            steps.append([])
            anchor_passed = False
        anchor_passed = anchor_passed or event == pattern.anchor
        steps[-1].append(event)
    return [tuple(step) for step in steps]


@dataclass(slots=True)
class LearningNotes:
    """Notes on the loop whose first backward pass begins now."""

    _began_s: float = field(default_factory=monotonic)
    _next_s: float = _FIRST_NOTE_S

    def say(self, num_backwards: int) -> None:
        """Print on rank 0 what is learned, where it takes long; `num_backwards` have followed the first one."""
        past_s = monotonic() - self._began_s
        if past_s < self._next_s or os.environ.get("RANK", "0") != "0":
            return
        self._next_s = 2 * past_s
        backwards = f"{num_backwards + 1} backward passes in {past_s:.0f} s"
        append_message(
            "", f"traceq: learning where the steps of this loop begin, from about {LEARNED_STEPS}: {backwards}"
        )
