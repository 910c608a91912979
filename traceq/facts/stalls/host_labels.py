"""Labels of host activity: the op or else the annotation, and the Python line, numbered in order of first use."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching, unique_inverse
from traceq.facts.events.nesting import nests_by_track, tracks
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.active_thread import ActiveThread
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.lines_between_ops import lines_between_ops
from traceq.facts.timeline.phases import phases
from traceq.grouping import Numbers, by_value
from traceq.model import Category, Trace

_STEP_OR_LOADER = re.compile(rf"^(ProfilerStep#|{LOADER})")


class HostLabels:
    """Texts of names and lines -> their numbers, in order of first use; "" is 0."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.texts: dict[str, int] = {"": 0}

    def on_host(self, active: ActiveThread) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (innermost op, line) of the active thread at each of its times."""
        origin = origins(self.trace, active.track, active.time_ns, active.time_ns, innermost=active.op)
        return self.numbered(origin.texts)[origin.op], self.numbered(origin.texts)[origin.line]

    def between_ops(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the line of the main thread at some times in no op, by the table that a recording embeds."""
        between = lines_between_ops(self.trace)
        return np.append(self.numbered(between.lines), 0)[between.line_at(time_ns)]

    def of_syncs(self, call: Numbers) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (op or else the call itself, line) of some blocking calls."""
        all_syncs = syncs(self.trace)
        events, origin = self.trace.events, all_syncs.origin
        numbers = self.numbered(origin.texts)
        calls = self._numbers_of_names(events.name[all_syncs.rows[call]])
        return np.where(origin.op[call] > 0, numbers[origin.op[call]], calls), numbers[origin.line[call]]

    def of_launches(self, call: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (op, line) that launched some work, given the rows of the launching calls."""
        events = self.trace.events
        rows, inverse = unique_inverse(call, len(events))
        origin = origins(self.trace, tracks(self.trace)[rows], events.ts[rows], events.end[rows], rows)
        numbers = self.numbered(origin.texts)
        return numbers[origin.op][inverse], numbers[origin.line][inverse]

    def of_kernels(self, work: Numbers) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (op that launched it or else its own name, line) of some device work."""
        events, all_work = self.trace.events, device_work(self.trace)
        names, line = self._numbers_of_names(events.name[all_work.rows[work]]), np.zeros(len(work), np.int32)
        linked = np.flatnonzero(all_work.linked[work])
        op, line[linked] = self.of_launches(all_work.call[work[linked]])
        names[linked] = np.where(op > 0, op, names[linked])
        return names, line

    def around(self, track: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the innermost annotation of each thread at some times; step marks and phases do not count."""
        events = self.trace.events
        rows = events.rows(Category.ANNOTATION)
        rows = rows[~matching(events, rows, _STEP_OR_LOADER)]
        phase_names = set(phases(self.trace).names)
        is_phase = np.array([name in phase_names for name in events.strings], np.bool_)
        rows = rows[~is_phase[events.name[rows]]]
        names = np.zeros(len(time_ns), np.int64)
        nests = nests_by_track(self.trace, rows)
        for number, on_track in by_value(track):
            if (annotations := nests.get(number)) is None:
                continue
            index = annotations.innermost_at(time_ns[on_track])
            annotated = np.flatnonzero(index >= 0)
            names[on_track[annotated]] = self._numbers_of_names(events.name[annotations.rows[index[annotated]]])
        return names

    def _numbers_of_names(self, names: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the numbers of some names of events."""
        strings = self.trace.events.strings
        is_used, numbers = np.zeros(len(strings), np.bool_), np.zeros(len(strings), np.int32)
        is_used[names] = True
        for name in np.flatnonzero(is_used).tolist():
            numbers[name] = self.texts.setdefault(strings[name], len(self.texts))
        return numbers[names]

    def numbered(self, texts: tuple[str, ...]) -> NDArray[np.int32]:
        """Return the numbers of some texts, new ones included."""
        return np.array([self.texts.setdefault(text, len(self.texts)) for text in texts], np.int32)
