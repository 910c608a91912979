"""Names of what the host is at, numbered as they come: the op, or else the annotation, with the line of Python."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching, numbers_used
from traceq.facts.events.nesting import nest, tracks
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.active_thread import ActiveThread
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.phases import phases
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["Labels"]

_NO_PLACE = re.compile(rf"^(ProfilerStep#|{LOADER})")


class Labels:
    """Names and lines of pieces, numbered as they come."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.texts: dict[str, int] = {"": 0}

    def on_host(self, turns: ActiveThread, asked: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(innermost op, line) of the thread at work at some of the instants (indices)."""
        at = turns.at[asked]
        found = origins(self.trace, turns.track[asked], at, at, innermost=turns.op[asked])
        return self.numbered(found.texts)[found.op], self.numbered(found.texts)[found.line]

    def of_syncs(self, call: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(op, or else the call itself, line) of some blocking calls."""
        found = syncs(self.trace)
        events, origin = self.trace.events, found.origin
        numbers = self.numbered(origin.texts)
        calls = self._named(events.name[found.rows[call]])
        return np.where(origin.op[call] > 0, numbers[origin.op[call]], calls), numbers[origin.line[call]]

    def of_launches(self, call: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(op, line) that launched some work, by rows of the launching calls."""
        events = self.trace.events
        rows, inverse = numbers_used(call, len(events))
        found = origins(self.trace, tracks(self.trace)[rows], events.ts[rows], events.end[rows], rows)
        numbers = self.numbered(found.texts)
        return numbers[found.op][inverse], numbers[found.line][inverse]

    def around(self, track: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The innermost annotation of a thread at some instants, if it is no step and no phase."""
        events, of_row = self.trace.events, tracks(self.trace)
        rows = events.rows(Category.ANNOTATION)
        rows = rows[~matching(events, rows, _NO_PLACE)]
        phase_names = set(phases(self.trace).names)
        is_phase = np.array([name in phase_names for name in events.strings], np.bool_)
        rows = rows[~is_phase[events.name[rows]]]
        names = np.zeros(len(at), np.int64)
        for number in sorted_unique(track).tolist():
            mine, inside = np.flatnonzero(track == number), nest(events, rows[of_row[rows] == number])
            found = inside.at(at[mine])
            there = np.flatnonzero(found >= 0)
            names[mine[there]] = self._named(events.name[inside.rows[found[there]]])
        return names

    def _named(self, names: NDArray[np.int32]) -> NDArray[np.int64]:
        """Numbers of some names of events."""
        strings = self.trace.events.strings
        is_used, numbers = np.zeros(len(strings), np.bool_), np.zeros(len(strings), np.int64)
        is_used[names] = True
        for name in np.flatnonzero(is_used).tolist():
            numbers[name] = self.texts.setdefault(strings[name], len(self.texts))
        return numbers[names]

    def numbered(self, words: tuple[str, ...]) -> NDArray[np.int64]:
        """Numbers of some texts, old or new."""
        return np.array([self.texts.setdefault(word, len(self.texts)) for word in words], np.int64)
