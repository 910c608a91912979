"""Kinds of values that a verdict is based on: pairs of one process, medians of processes, profiled steps."""

from __future__ import annotations

from dataclasses import replace

from traceq.frozen import frozen

__all__ = ["MEANS", "PAIRS", "PROCESSES", "STEPS", "SampleKind"]


@frozen
class SampleKind:
    """Kind of values: whether they can be tested and what the verdict is valid for.

    `noun` and `of` name the values, as in "4 processes" "per side". `fewest` is the number to record where there is no
    interval yet, None if no number gives one; `balance` is a condition on it. `scope` opens the reason. Above `most`
    values the reason gives only that bound.
    """

    noun: str
    of: str = ""
    fewest: int | None = None
    balance: str = ""
    scope: str = ""
    most: int = 5_000

    def count(self, text: str) -> str:
        """Return `1 process per side` or `3 and 7 processes per side` for the number in the text."""
        plural = {"process": "processes"}.get(self.noun, f"{self.noun}s")
        return " ".join(filter(None, (text, self.noun if text == "1" else plural, self.of)))


PAIRS = SampleKind("pair", "", 16, ", 8 in each order", "in this process, ")
"""The fewest are one block of the recorder's schedule."""
MEANS = replace(PAIRS, scope="in this process, of the mean step with its rare events, ")
PROCESSES = SampleKind("process", "per side", 4, most=200)
"""The most extreme orders of 4 per side are 2 of 70; of 3 per side 2 of 20."""
STEPS = SampleKind("profiled step", "of one window per side")
