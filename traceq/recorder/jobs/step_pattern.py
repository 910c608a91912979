"""The events of a usual step of a training loop.

Events are those of any framework: L a batch is requested, F and f the forward of a model with and without gradients,
B a backward, O0, O1 ... the steps of optimizers, S a checkpoint is saved, C torch compiles; F* forwards in a row, of
either kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

__all__ = ["BACKWARD", "BATCH", "COMPILE", "FORWARD", "FORWARDS", "StepPattern", "joined_forwards", "short_text"]

BACKWARD, BATCH, COMPILE, FORWARD = "B", "L", "C", "F"
FORWARDS = (FORWARD, "f")
_ANY_FORWARDS = "F*"
_MIN_ALIKE = 0.5


@dataclass(frozen=True, slots=True)
class StepPattern:
    """Events of a usual step; its first start event after the `anchor` begins the next one.

    `num_alike` of `num_seen` steps had these events. `parts`: their events if a step has several, each with the anchor.
    `joins_forwards`: forwards in a row are one event, and those without gradients start a step, too.
    """

    events: tuple[str, ...]
    anchor: str
    start: str
    num_alike: int
    num_seen: int
    parts: tuple[tuple[str, ...], ...] = ()
    joins_forwards: bool = False

    def starts_with(self, event: str) -> bool:
        """Return whether a step, or a part of one, may start with this event."""
        return event == self.start or (self.joins_forwards and self.start == FORWARD and event in FORWARDS)

    def joined(self, events: Sequence[str]) -> list[str]:
        """Return events of a step as those of the pattern are: with forwards in a row as one, if it joins them."""
        return joined_forwards(events) if self.joins_forwards else list(events)

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

    @property
    def is_doubtful(self) -> bool:
        """True if hardly more than half of the steps are alike, as of two kinds that take turns."""
        return 2 * self.num_alike <= self.num_seen + 1


def short_text(events: Sequence[str]) -> str:
    """Return events separated by spaces, with groups that repeat as `(F B)x4`."""
    text = "".join(f"{event} " for event in events)
    return re.sub(r"((?:[\w*]+ )+?)\1{2,}", _repeated, text).strip()


def _repeated(match: re.Match[str]) -> str:
    return f"({match[1].strip()})x{len(match[0]) // len(match[1])} "


def joined_forwards(events: Sequence[str]) -> list[str]:
    """Return events with one in the place of forwards in a row."""
    runs = groupby(events, lambda event: _ANY_FORWARDS if event in FORWARDS else event)
    return [each for event, run in runs for each in ([event] if event == _ANY_FORWARDS else run)]
