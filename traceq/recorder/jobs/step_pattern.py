"""The events of a usual step of a training loop.

Events are those of any framework: E an epoch begins, L a batch is requested, F and f the forward of a model with and
without gradients, B a backward, O0, O1 ... the steps of optimizers, S a checkpoint is saved, C torch compiles. F* are
forwards in a row, of either kind; (L F B)* is what one batch needs, once or several times in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

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
        """The events as `L F B O0 (6 of 6 alike)`."""
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


def short_text(events: Sequence[str]) -> str:
    """Return events separated by spaces, with groups that repeat as `(F B)x4`."""
    text = "".join(f"{event} " for event in events)
    return re.sub(r"(?<!\S)((?:[\w*]+ ){1,32}?)\1{2,}", _repeated, text).strip()


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
