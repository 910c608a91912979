"""Timeline of one step, as fine as a chart can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.model import Trace

__all__ = ["StepTimeline", "TimelineSpan", "step_timeline"]

_NUM_PIECES = 600
"""Pieces that a step is divided into; each shows the category of most of its time."""

_NAMED = 8
"""A name fits into this fraction of a step: one eighth."""


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A span of a step, relative to its start.

    `shade` distinguishes adjacent spans; a span that is `named` is long enough for its name.
    """

    row: str
    name: str
    start_ns: int
    end_ns: int
    shade: float = 1.0
    named: bool = False


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A step's name, and its phases and categories over time."""

    step: str
    spans: tuple[TimelineSpan, ...]


def step_timeline(trace: Trace) -> StepTimeline:
    """Return the timeline of the step of median duration among those that count."""
    all_steps = steps(trace)
    counted = np.flatnonzero(all_steps.counted)
    length = (all_steps.window[:, 1] - all_steps.window[:, 0])[counted]
    middle = int(counted[np.argsort(length, kind="stable")[(len(counted) - 1) // 2]])
    start, end = all_steps.window[middle].tolist()
    return StepTimeline(all_steps.names[middle], (*_phases(trace, start, end), *_categories(trace, start, end)))


def _phases(trace: Trace, start: int, end: int) -> list[TimelineSpan]:
    labels = phases(trace)
    parts = np.clip(labels.main.parts, start, end)
    visible = np.flatnonzero((parts[:, 1] - parts[:, 0]) * _NUM_PIECES > end - start)
    return [
        TimelineSpan(
            row="phase",
            name=labels.names[label],
            start_ns=first - start,
            end_ns=last - start,
            shade=0.6 if number % 2 else 0.3,
            named=(last - first) * _NAMED >= end - start,
        )
        for number, (label, (first, last)) in enumerate(
            zip(labels.main.label[visible].tolist(), parts[visible].tolist(), strict=True)
        )
    ]


def _categories(trace: Trace, start: int, end: int) -> list[TimelineSpan]:
    """Return spans of the category that most of each piece belongs to; adjacent pieces of one category are joined."""
    partition = activity(trace)
    edges = np.linspace(start, end, _NUM_PIECES + 1).astype(np.int64)
    time_ns = np.zeros((len(TimeCategory), _NUM_PIECES), np.int64)
    for category in TimeCategory:
        mask = partition.category == category
        total = np.r_[0, np.cumsum(partition.ns[mask])]
        first = partition.parts[mask, 0]
        count = np.searchsorted(first, edges, "right")
        inside = np.minimum(edges - np.r_[0, first][count], np.r_[0, partition.ns[mask]][count])
        until = total[np.maximum(count - 1, 0)] + np.where(count > 0, inside, 0)
        time_ns[category] = np.diff(until)
    most = time_ns.argmax(axis=0)
    opens = np.flatnonzero(np.r_[True, np.diff(most) != 0])
    closes = np.r_[opens[1:], _NUM_PIECES]
    return [
        TimelineSpan(
            "time", TimeCategory(most[first]).name.lower(), int(edges[first] - start), int(edges[last] - start)
        )
        for first, last in zip(opens.tolist(), closes.tolist(), strict=True)
    ]
