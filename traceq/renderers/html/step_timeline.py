"""One step as it went, no finer than a picture can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.model import Trace

__all__ = ["Moment", "Moments", "moments"]

_FINEST = 600
"""Pieces that a picture of a step is cut into; each shows what most of it is spent on."""

_NAMED = 8
"""A name fits into this part of a step."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A stretch of time from the step's start on; `shade` tells neighbours of one kind apart, and one that is `named`
    is long enough for its name.
    """

    row: str
    name: str
    start_ns: int
    end_ns: int
    shade: float = 1.0
    named: bool = False


@dataclass(frozen=True, slots=True)
class Moments:
    """A step's name, and what it was spent on, when."""

    step: str
    moments: tuple[Moment, ...]


def moments(trace: Trace) -> Moments:
    """The middle one, by length, of the steps that count."""
    found = steps(trace)
    counted = np.flatnonzero(found.counted)
    length = (found.window[:, 1] - found.window[:, 0])[counted]
    chosen = int(counted[np.argsort(length, kind="stable")[(len(counted) - 1) // 2]])
    start, end = found.window[chosen].tolist()
    return Moments(found.names[chosen], (*_phases(trace, start, end), *_spent(trace, start, end)))


def _phases(trace: Trace, start: int, end: int) -> list[Moment]:
    found = phases(trace)
    parts = np.clip(found.main.parts, start, end)
    kept = np.flatnonzero((parts[:, 1] - parts[:, 0]) * _FINEST > end - start)
    return [
        Moment(
            row="phase",
            name=found.names[label],
            start_ns=first - start,
            end_ns=last - start,
            shade=0.6 if number % 2 else 0.3,
            named=(last - first) * _NAMED >= end - start,
        )
        for number, (label, (first, last)) in enumerate(
            zip(found.main.label[kept].tolist(), parts[kept].tolist(), strict=True)
        )
    ]


def _spent(trace: Trace, start: int, end: int) -> list[Moment]:
    """Of each fine piece the category that takes most of it; neighbours of one category are one."""
    done = activity(trace)
    edges = np.linspace(start, end, _FINEST + 1).astype(np.int64)
    taken = np.zeros((len(TimeCategory), _FINEST), np.int64)
    for doing in TimeCategory:
        mine = done.doing == doing
        reach = np.r_[0, np.cumsum(done.ns[mine])]
        first = done.parts[mine, 0]
        at = np.searchsorted(first, edges, "right")
        inside = np.minimum(edges - np.r_[0, first][at], np.r_[0, done.ns[mine]][at])
        upto = reach[np.maximum(at - 1, 0)] + np.where(at > 0, inside, 0)
        taken[doing] = np.diff(upto)
    most = taken.argmax(axis=0)
    opens = np.flatnonzero(np.r_[True, np.diff(most) != 0])
    closes = np.r_[opens[1:], _FINEST]
    return [
        Moment("time", TimeCategory(most[first]).name.lower(), int(edges[first]) - start, int(edges[last]) - start)
        for first, last in zip(opens.tolist(), closes.tolist(), strict=True)
    ]
