"""What is said while the steps of a job are learned, so that a job of long steps does not seem to hang."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from time import monotonic

from traceq.recorder.jobs.pattern_learning import LEARNED_STEPS
from traceq.recorder.process.rank_messages import append_message

__all__ = ["LearningNotes"]

_FIRST_NOTE_S = 10.0
"""Seconds of learning after which a line says what for; the next line comes after twice the time."""


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
