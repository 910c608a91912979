"""Lanes of the timeline as columns: device streams, and host threads with ops inside each other in rows.

Spans share their labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import kernel_labels
from traceq.facts.events.kernels import is_communication, is_spin_wait
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import nest, tracks
from traceq.facts.stalls.idle_time import HostLabels
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track
from traceq.frozen import frozen
from traceq.grouping import Numbers, group
from traceq.intervals import contains, sorted_unique, spans
from traceq.model import Category, Trace
from traceq.renderers.limits import NAME_LENGTH, STREAM_ROWS
from traceq.short_texts import cut_middle

BLOCK = -1
"""Label of several spans that are drawn as one."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a span says: its name, its colour by its kind, the op and line that it comes from, and a note."""

    name: str
    colour: str
    op: str = ""
    line: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Labels:
    """Distinct labels in order of first use."""

    numbers: dict[Label, int] = field(default_factory=dict)

    def number(self, label: Label) -> int:
        """Return the number of a label, a new one included."""
        return self.numbers.setdefault(label, len(self.numbers))


@frozen(eq=False)
class Lane:
    """N spans of one row of the timeline, by start.

    `start`, `end` int64[N] ns in the trace's own time; `label` int64[N] into Labels, BLOCK for merged spans; `num`
    int64[N] spans that each stands for, `busy` int64[N] ns, the sum of their durations. `extra` int64[N] ns: the
    device's idle time right after a sync, the time from its launch to device work, -1 without one; None elsewhere.

    `kind` decides how a lane is drawn; `depth` of nested rows counts from 0; `title` is "" for all but the first of
    several rows.
    """

    title: str
    kind: str
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    label: NDArray[np.int64]
    num: NDArray[np.int64]
    busy: NDArray[np.int64]
    extra: NDArray[np.int64] | None = None
    depth: int = 0

    @classmethod
    def of(
        cls,
        title: str,
        kind: str,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        label: NDArray[np.int64],
        *,
        extra: NDArray[np.int64] | None = None,
        depth: int = 0,
    ) -> Lane:
        """Return the lane of spans that stand for themselves."""
        return cls(title, kind, start, end, label, np.ones(len(start), np.int64), end - start, extra, depth)

    def __len__(self) -> int:
        return len(self.start)


_STEP = re.compile(r"^ProfilerStep#\d+$")
_COLOURS = ("copy", "kernel", "exposed_comm", "spin_wait")
_OF_HOST = {
    int(Category.CPU_OP): "op",
    int(Category.ANNOTATION): "annotation",
    int(Category.RUNTIME): "call",
    int(Category.COMPILING): "compiling",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a trace has lanes: the busiest streams and threads, and rows of ops inside each other."""

    num_streams: int
    num_threads: int
    num_rows: int


@frozen(eq=False)
class EventLanes:
    """Lanes, and what has none: streams or threads beyond the limit, and events of rows that are too deep."""

    lanes: list[Lane]
    num_tracks_left_out: int = 0
    num_events_left_out: int = 0


def device_lanes(trace: Trace, window: tuple[int, int], labels: Labels, limits: Limits) -> EventLanes:
    """Return the lanes of the device's streams, the busiest first; the extra of a span is the time since its launch."""
    work, does, strings = device_work(trace), kernel_labels(trace), trace.events.strings
    index = np.flatnonzero((work.start < window[1]) & (work.end > window[0]))
    host_labels = HostLabels(trace)
    op, line = host_labels.of_kernels(index)
    texts = list(host_labels.texts)
    is_kernel = trace.events.category[work.rows[index]] == Category.KERNEL
    name = np.where(is_kernel, does.label[index], trace.events.name[work.rows[index]])
    colour = np.where(is_kernel, 1, 0)
    colour[is_communication(trace)[index]] = 2
    colour[is_spin_wait(trace)[index]] = 3

    def label_of(name_number: int, colour_number: int, op_number: int, line_number: int) -> Label:
        shown = (does.names if colour_number else strings)[name_number]
        return Label(shown, _COLOURS[colour_number], texts[op_number], texts[line_number])

    label = labelled(labels, [name, colour, op.astype(np.int64), line], label_of)
    call = work.call[index]
    lag = np.where(call >= 0, np.maximum(work.start[index] - trace.events.ts[call], 0), -1)
    start, end, stream = work.start[index], work.end[index], work.stream[index]
    streams = _busiest(stream, end - start)
    lanes: list[Lane] = []
    for number in sorted(streams[: limits.num_streams]):
        on_stream = np.flatnonzero(stream == number)
        title = _stream_title(number, has_devices=_has_devices(streams))
        for depth, rows in enumerate(_disjoint_rows(start[on_stream], end[on_stream])):
            shown = on_stream[rows]
            columns = start[shown], end[shown], label[shown]
            lanes.append(Lane.of("" if depth else title, "stream", *columns, extra=lag[shown], depth=depth))
    return EventLanes(lanes, max(len(streams) - limits.num_streams, 0))


def host_lanes(trace: Trace, window: tuple[int, int], labels: Labels, limits: Limits) -> EventLanes:
    """Return the lanes of the host's threads, the main one first, then the busiest; ops inside each other in rows.

    They hold ops, runtime calls, annotations and compiling; steps and phases have lanes already.
    """
    events, row_track, main = trace.events, tracks(trace), main_track(trace)
    rows = events.rows(*map(Category, _OF_HOST))
    rows = rows[(events.ts[rows] < window[1]) & (events.end[rows] > window[0])]
    is_phase = np.isin(events.category[rows], (Category.ANNOTATION,)) & matching(events, rows, _phase_names(trace))
    rows = rows[~is_phase & ~matching(events, rows, _STEP)]
    busiest = _busiest(row_track[rows], events.dur[rows])
    threads = sorted(busiest, key=lambda track: track != main)
    names = {(thread.pid, thread.tid): thread.name.strip() for thread in trace.threads}
    lanes, num_deep = list[Lane](), 0
    for track in threads[: limits.num_threads]:
        on_track = nest(events, rows[row_track[rows] == track])
        depth = on_track.depth(limits.num_rows)
        label = _host_labels(trace, track, on_track.rows, labels)
        tid = events.strings[int(events.tid[on_track.rows[0]])]
        pid = events.strings[int(events.pid[on_track.rows[0]])]
        title = "main thread" if track == main else names.get((pid, tid)) or f"thread {tid}"
        for level in range(limits.num_rows):
            index = np.flatnonzero(depth == level)
            if len(index) == 0:
                break
            columns = on_track.start[index], on_track.end[index], label[index]
            lanes.append(Lane.of("" if level else title, "host", *columns, depth=level))
        num_deep += int(np.count_nonzero(depth == limits.num_rows))
    return EventLanes(lanes, max(len(threads) - limits.num_threads, 0), num_deep)


def _host_labels(trace: Trace, track: int, rows: NDArray[np.int64], labels: Labels) -> NDArray[np.int64]:
    """Return the label of host rows of a thread: int64[M]."""
    events = trace.events
    origin = origins(trace, np.full(len(rows), track), events.ts[rows], events.end[rows])
    calls = blocking_calls(trace)
    on_track = np.flatnonzero(calls.track == track)
    waits = contains(spans(calls.start[on_track], calls.end[on_track]), events.ts[rows])
    blocks = waits & (events.category[rows] == Category.RUNTIME)  # a copy and the synchronize after it, both

    def label_of(name: int, category: int, line: int, is_sync: int) -> Label:
        colour = "sync_wait" if is_sync else _OF_HOST[category]
        return Label(events.strings[name], colour, "", origin.texts[line])

    columns = [
        events.name[rows].astype(np.int64),
        events.category[rows].astype(np.int64),
        origin.line,
        blocks.astype(np.int64),
    ]
    return labelled(labels, columns, label_of)


def _phase_names(trace: Trace) -> re.Pattern[str]:
    return re.compile("^(" + "|".join(map(re.escape, phases(trace).names)) + ")$")


def _busiest(track: NDArray[np.int64], ns: NDArray[np.int64]) -> list[int]:
    """Return the tracks by their time, the largest first."""
    distinct = sorted_unique(track)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, np.searchsorted(distinct, track), ns)
    busiest: list[int] = distinct[np.argsort(-total, kind="stable")].tolist()
    return busiest


def _has_devices(streams: Sequence[int]) -> bool:
    """Return whether the streams, numbered as in DeviceWork, are of several devices."""
    return len({(number + 1) >> 32 for number in streams}) > 1


def _stream_title(number: int, *, has_devices: bool) -> str:
    """Return `stream 7`, or `stream 7 of device 1`; a stream that the trace does not number is -1."""
    device = (number + 1) >> 32
    stream = number - (device << 32)
    return (f"stream {stream}" if stream >= 0 else "device") + (f" of device {device}" if has_devices else "")


def _disjoint_rows(start: NDArray[np.int64], end: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the spans in rows of disjoint ones, as far as three rows do; the last holds all others.

    `start` ascends. A row takes what begins after all of it that came before has ended.
    """
    rows, rest = list[NDArray[np.int64]](), np.arange(len(start))
    while len(rest) and len(rows) < STREAM_ROWS - 1:
        reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, end[rest]])[:-1]
        fits = start[rest] >= reach
        rows.append(rest[fits])
        rest = rest[~fits]
    return [*rows, rest] if len(rest) else rows


def labelled(labels: Labels, columns: Sequence[Numbers], label_of: Callable[..., Label]) -> NDArray[np.int64]:
    """Return the label of each row: int64[N]; `label_of` is called with the values of each distinct combination."""
    if len(columns[0]) == 0:
        return np.empty(0, np.int64)
    groups = group(columns)
    numbers = np.array([labels.number(_cut(label_of(*key))) for key in groups.keys.tolist()], np.int64)
    return numbers[groups.group_ids]


def _cut(label: Label) -> Label:
    """Return the label with a name that is not longer than the page holds."""
    return replace(label, name=cut_middle(label.name, NAME_LENGTH))
