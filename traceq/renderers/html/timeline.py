"""The timeline of a page: lanes of each shown trace, small enough for one file, as packed JSON for timeline.js.

The ranks that it shows are the slowest, the median and the fastest, by what they wait for others, each at the step of
median duration; where all traces are aligned is its zero.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceq.escaping import visible
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.job import job_of
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.host_stacks import host_pieces
from traceq.facts.timeline.modules import modules, modules_at
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import Spans
from traceq.model import Run, Trace
from traceq.renderers.html.markup import Json, figure
from traceq.renderers.html.timeline_lanes import (
    BLOCK,
    Label,
    Labels,
    Lane,
    Limits,
    device_lanes,
    host_lanes,
    labelled,
)
from traceq.renderers.limits import SPANS
from traceq.renderers.perfetto.worst_place import common_clock
from traceq.report import Cell, Sheet
from traceq.units import Unit, format_value


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """One trace of the timeline.

    `step` is the index of the shown step; `zero_ns`, in the trace's own time, is where all traces are aligned; the
    window (`start_ns`, `end_ns`) is relative to that. `side` is A, B, or "" where there is one run; `title` says what
    the trace is.
    """

    trace: Trace
    title: str
    step: int
    zero_ns: int
    start_ns: int
    end_ns: int
    side: str = ""

    @property
    def window(self) -> tuple[int, int]:
        """The window in the trace's own time, ns."""
        return self.zero_ns + self.start_ns, self.zero_ns + self.end_ns

    @property
    def step_ns(self) -> tuple[int, int]:
        """Start and end of the shown step, on host and device, in the trace's own time."""
        return _extent(self.trace, self.step, 0)


def median_step(trace: Trace) -> int:
    """Return the index of the step of median duration among those that count."""
    counted = np.flatnonzero(steps(trace).counted)
    window = steps(trace).window[counted]
    return int(counted[np.argsort(window[:, 1] - window[:, 0], kind="stable")[(len(counted) - 1) // 2]])


def traces_of_run(run: Run, titles: Mapping[int, str], num_neighbours: int) -> tuple[ShownTrace, ...]:
    """Return the traces of some ranks of a run, in the order of `titles`, by rank.

    All show the time of the first one's median step, with `num_neighbours` steps on either side; ranks that did not run
    at the same time show a median step each.
    """
    by_rank = {trace.rank: trace for trace in run.traces}
    chosen = [by_rank[rank] for rank in titles if rank in by_rank]
    zeros = _zeros(run, chosen)
    return _aligned(chosen, [titles[trace.rank] for trace in chosen], zeros, num_neighbours)


def pair_of_traces(ours: Trace, theirs: Trace, names: tuple[str, str], num_neighbours: int) -> tuple[ShownTrace, ...]:
    """Return A's and B's trace, each at its median step, aligned where these begin."""
    traces = (ours, theirs)
    titles = [f"{side} · {name} · rank {trace.rank}" for trace, side, name in zip(traces, "AB", names, strict=True)]
    return _aligned(traces, titles, list(map(_begin_of_median, traces)), num_neighbours, sides=("A", "B"))


def _aligned(
    traces: Sequence[Trace],
    titles: Sequence[str],
    zeros: Sequence[int],
    num_neighbours: int,
    sides: Sequence[str] | None = None,
) -> tuple[ShownTrace, ...]:
    """Return the traces with the window, the same on all, in which their steps at time zero ran."""
    shown = [_step_at(trace, zero) for trace, zero in zip(traces, zeros, strict=True)]
    extents = [_extent(trace, step, num_neighbours) for trace, step in zip(traces, shown, strict=True)]
    start_ns = min(start - zero for (start, _), zero in zip(extents, zeros, strict=True))
    end_ns = max(end - zero for (_, end), zero in zip(extents, zeros, strict=True))
    return tuple(
        ShownTrace(trace, title, step, zero, start_ns, end_ns, side)
        for trace, title, step, zero, side in zip(
            traces, titles, shown, zeros, sides or [""] * len(traces), strict=True
        )
    )


def _zeros(run: Run, traces: Sequence[Trace]) -> list[int]:
    """Return when the first trace's median step begins, in the time of each trace; each its own if they ran apart."""
    zero_ns = _begin_of_median(traces[0])
    if len(traces) == 1:
        return [zero_ns]
    together = Run(run.path, tuple(sorted(traces, key=lambda trace: trace.rank)))
    if not job_of(together).is_concurrent:
        return list(map(_begin_of_median, traces))
    offset = dict(zip(together.ranks, common_clock(together).offset.tolist(), strict=True))
    return [zero_ns + offset[traces[0].rank] - offset[trace.rank] for trace in traces]


def _begin_of_median(trace: Trace) -> int:
    return int(steps(trace).window[median_step(trace), 0])


def _step_at(trace: Trace, zero_ns: int) -> int:
    """Return the index of the step whose window begins nearest to a time."""
    return int(np.argmin(np.abs(steps(trace).window[:, 0] - zero_ns)))


def _extent(trace: Trace, step: int, num_neighbours: int) -> tuple[int, int]:
    """Return from when to when a step and its neighbours of one profiler session take, on host or device."""
    all_steps = steps(trace)
    session = np.cumsum(all_steps.begins_session)
    of_session = np.flatnonzero(session == session[step])
    first, last = max(step - num_neighbours, of_session[0]), min(step + num_neighbours, of_session[-1])
    start = min(int(all_steps.host[first, 0]), int(all_steps.window[first, 0]))
    return start, max(int(all_steps.host[last, 1]), int(all_steps.window[last, 1]))


def shown_ranks(sheet: Sheet) -> dict[int, str]:
    """Return the ranks that matter, each with its title, the slowest first; all of up to three.

    The slowest waits least for others in collectives; without collectives it is the one with the longest step.
    """
    ranks = sheet.source.ranks
    if len(ranks) < 2:
        return {rank: f"rank {rank}" for rank in ranks}
    order, words = _by_waits(sheet)
    if len(order) != len(ranks):
        return {rank: f"rank {rank}" for rank in ranks[:3]}
    chosen = dict.fromkeys((order[0], order[len(order) // 2], order[-1]))
    titles = dict(zip((order[0], order[-1]), words, strict=True))
    return {rank: f"rank {rank} · {titles.get(rank, 'median')}" for rank in chosen}


def _by_waits(sheet: Sheet) -> tuple[list[int], tuple[str, str]]:
    """Return the ranks, the slowest first, and what to call the first and the last."""
    rows = [
        dict(zip((column.key for column in table.columns), row, strict=True))
        for report in sheet.reports
        if report.name == "ranks"
        for table in report.tables
        if table.key == "ranks"
        for row in table.rows
    ]
    if rows and all(row["wait_ns"] is not None for row in rows):
        return _ordered(rows, "wait_ns", 1), ("slowest: waits least for others", "fastest: waits most for others")
    return _ordered(rows, "step_ns", -1), ("slowest: longest step", "fastest: shortest step")


def _ordered(rows: Sequence[Mapping[str, Cell]], key: str, sign: int) -> list[int]:
    """Return the ranks of the rows by a column, ascending for sign 1."""
    return [int(row["rank"] or 0) for row in sorted(rows, key=lambda row: sign * float(row[key] or 0))]


_OF_ONE, _OF_SEVERAL = Limits(num_streams=8, num_threads=4, num_rows=8), Limits(4, 2, 5)


@frozen(eq=False)
class TraceLanes:
    """Lanes of one shown trace; `left_out` are (number, what) that have none."""

    shown: ShownTrace
    lanes: tuple[Lane, ...]
    left_out: tuple[tuple[int, str], ...]


@frozen(eq=False)
class Timeline:
    """Lanes of all shown traces, one group below the other; spans shorter than `finest_ns` are merged where they meet.

    `num_spans` before merging. `number` tells several of one page apart.
    """

    groups: tuple[TraceLanes, ...]
    labels: Labels
    finest_ns: int
    num_spans: int
    number: int = 0

    @property
    def shown(self) -> tuple[ShownTrace, ...]:
        """The shown traces, in order."""
        return tuple(group.shown for group in self.groups)

    def figure(self) -> str:
        """Return the figure that timeline.js draws."""
        texts = {"": 0}
        entries = [
            [
                texts.setdefault(text, len(texts))
                for text in (label.name, label.colour, label.op, label.line, label.note)
            ]
            for label in self.labels.numbers
        ]
        groups: list[Json] = [_group_json(group) for group in self.groups]
        first = self.shown[0]
        data: dict[str, Json] = {
            "start": first.start_ns,
            "end": first.end_ns,
            "step": self._step_range(),
            "finest": self.finest_ns,
            "groups": groups,
            "labels": entries,
            "texts": [visible(text) for text in texts],
            "notes": list(self.notes),
        }
        packed: dict[str, Json] = {"packed": _packed(data), "number": self.number}
        return figure("timeline", packed, "Timeline", self.summary, key="timeline")

    def _step_range(self) -> list[int]:
        """Return when the shown step begins and ends on any of the traces, relative to zero, ns."""
        ranges = [(each.step_ns[0] - each.zero_ns, each.step_ns[1] - each.zero_ns) for each in self.shown]
        return [min(start for start, _ in ranges), max(end for _, end in ranges)]

    @property
    def summary(self) -> str:
        """Which step of which rank is shown, in a sentence."""
        each = [_step_words(shown) for shown in self.shown]
        if len(set(each)) == 1:
            return f"{each[0]}, of {', '.join(shown.title for shown in self.shown)}."
        return "; ".join(f"{shown.title}: {words}" for shown, words in zip(self.shown, each, strict=True)) + "."

    @property
    def notes(self) -> tuple[str, ...]:
        """What is merged or left out, in sentences."""
        left_out: dict[str, int] = {}
        for num, what in (entry for group in self.groups for entry in group.left_out):
            left_out[what] = left_out.get(what, 0) + num
        notes = [f"Left out: {', '.join(f'{num:,} {what}' for what, num in left_out.items())}."] if left_out else []
        if self.finest_ns:
            drawn = sum(len(lane) for group in self.groups for lane in group.lanes)
            finest = format_value(self.finest_ns, Unit.NS)
            text = f"Spans shorter than {finest} that follow each other are one block, of known number and time"
            notes.insert(0, f"{text}: {self.num_spans:,} spans as {drawn:,}.")
        return (*notes, "traceq open shows every event, in Perfetto.") if notes else ()


def run_timeline(run: Run, titles: Mapping[int, str], savings: SyncSavings | None = None) -> Timeline:
    """Return the timeline of a run's ranks, at least one of which has a trace; `titles` by rank, in order."""
    return _fitted(lambda neighbours: traces_of_run(run, titles, neighbours), savings or {})


def pair_timeline(
    ours: Trace, theirs: Trace, names: tuple[str, str], *, number: int = 0, num_on_page: int = 1
) -> Timeline:
    """Return the timeline of a trace of A above one of B, which are called `names`.

    It is that of a `number` among those of one page, which share its room.
    """
    most = SPANS // num_on_page
    fitted = _fitted(lambda neighbours: pair_of_traces(ours, theirs, names, neighbours), {}, most)
    return replace(fitted, number=number)


def _fitted(shown_with: Callable[[int], Sequence[ShownTrace]], savings: SyncSavings, most: int = SPANS) -> Timeline:
    """Return the timeline with neighbouring steps if these fit without merging, else of one step."""
    wide = shown_with(1)  # step on either side, where all fit without merging
    if sum(map(_num_events, wide)) <= most:
        groups, labels = lanes_of(wide, savings)
        if sum(len(lane) for group in groups for lane in group.lanes) <= most:
            return _merged(groups, labels, most)
    return _merged(*lanes_of(shown_with(0), savings), most)


def _num_events(shown: ShownTrace) -> int:
    """Return how many events overlap the window: no fewer spans than that will be drawn."""
    events, (start, end) = shown.trace.events, shown.window
    return int(np.count_nonzero((events.ts < end) & (events.end > start)))


def lanes_of(shown: Sequence[ShownTrace], savings: SyncSavings) -> tuple[list[TraceLanes], Labels]:
    """Return the lanes of some traces, nothing merged, and their labels; of several traces with fewer rows each."""
    labels, limits = Labels(), _OF_ONE if len(shown) == 1 else _OF_SEVERAL
    return [_lanes_of_trace(each, labels, limits, savings) for each in shown], labels


def _lanes_of_trace(shown: ShownTrace, labels: Labels, limits: Limits, savings: SyncSavings) -> TraceLanes:
    device = device_lanes(shown.trace, shown.window, labels, limits)
    host = host_lanes(shown.trace, shown.window, labels, limits)
    lanes = [
        *derived_lanes(shown.trace, shown.window, labels, savings),
        *device.lanes,
        *place_lanes(shown.trace, shown.window, labels),
        *host.lanes,
    ]
    counts = (
        (device.num_tracks_left_out, "streams with less work"),
        (host.num_tracks_left_out, "threads with less work"),
        (host.num_events_left_out, f"ops below {limits.num_rows} rows of others"),
    )
    left_out = tuple((num, what) for num, what in counts if num)
    return TraceLanes(shown, tuple(lane for lane in lanes if len(lane)), left_out)


def _merged(groups: Sequence[TraceLanes], labels: Labels, most: int) -> Timeline:
    lanes = [lane for group in groups for lane in group.lanes]
    finest = finest_ns(lanes, most)
    merged = tuple(
        TraceLanes(group.shown, tuple(merge_short(lane, finest) for lane in group.lanes), group.left_out)
        for group in groups
    )
    return Timeline(merged, labels, finest, sum(map(len, lanes)))


def _step_words(shown: ShownTrace) -> str:
    """Return `ProfilerStep#12, the median of 8 steps (21.5 ms)`."""
    all_steps = steps(shown.trace)
    start, end = all_steps.window[shown.step].tolist()
    num = int(all_steps.counted.sum())
    of_many = f", the median of {num} steps" if num > 1 else ""
    return f"{all_steps.names[shown.step]}{of_many} ({format_value(end - start, Unit.NS)})"


def _group_json(group: TraceLanes) -> dict[str, Json]:
    shown, all_steps = group.shown, steps(group.shown.trace)
    zero = shown.zero_ns
    marks: list[Json] = [
        [name, start - zero, end - zero]
        for name, (start, end) in zip(all_steps.names, all_steps.window.tolist(), strict=True)
        if end > shown.window[0] and start < shown.window[1]
    ]
    return {
        "title": shown.title,
        "rank": shown.trace.rank,
        "side": shown.side,
        "steps": marks,
        "lanes": [_lane_json(lane, zero) for lane in group.lanes],
    }


def _lane_json(lane: Lane, zero_ns: int) -> dict[str, Json]:
    """Return the columns of a lane: gaps between spans, durations, labels (-1 for a block), and what blocks hold."""
    gap = lane.start - np.r_[zero_ns, lane.end[:-1]]
    is_block = lane.num > 1
    data: dict[str, Json] = {
        "title": lane.title,
        "kind": lane.kind,
        "depth": lane.depth,
        "gap": gap.tolist(),
        "ns": (lane.end - lane.start).tolist(),
        "label": lane.label.tolist(),
    }
    if is_block.any():
        data |= {"num": lane.num[is_block].tolist(), "busy": lane.busy[is_block].tolist()}
    if lane.extra is not None:
        data["extra"] = lane.extra.tolist()
    return data


def _packed(data: Mapping[str, Json]) -> str:
    """Return the JSON, compressed (zlib) and in base64: a third of its size."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return b64encode(zlib.compress(text.encode())).decode()


SyncSavings = Mapping[tuple[int, str], int]
"""(rank, key of a row of the table `syncs`) -> ns by which a step is shorter without the syncs of that row (replay)."""


def derived_lanes(trace: Trace, window: tuple[int, int], labels: Labels, savings: SyncSavings) -> list[Lane]:
    """Return the lanes of phases, categories, syncs and collectives that overlap the window (start, end) ns."""
    return [
        _phases(trace, window, labels),
        _partition(trace, window, labels),
        _syncs(trace, window, labels, savings),
        _collectives(trace, window, labels),
    ]


def place_lanes(trace: Trace, window: tuple[int, int], labels: Labels) -> list[Lane]:
    """Return the lanes of the host's innermost module and of its line, by the thread that is at work."""
    pieces = host_pieces(trace, np.array([window], np.int64))
    paths = modules(trace).paths
    module = _runs(pieces.parts, pieces.module, pieces.module >= 0)
    line = _runs(pieces.parts, pieces.line, pieces.line > 0)
    of_module = labelled(labels, [module[2]], lambda number: Label(paths[number], "module"))
    texts = pieces.lines
    of_line = labelled(labels, [line[2]], lambda number: Label(texts[number], "source", line=texts[number]))
    return [Lane.of("module", "module", *module[:2], of_module), Lane.of("line", "line", *line[:2], of_line)]


def _phases(trace: Trace, window: tuple[int, int], labels: Labels) -> Lane:
    timeline, names = phases(trace).main, phases(trace).names
    index = _overlapping(timeline.parts[:, 0], timeline.parts[:, 1], window)
    start, end = timeline.parts[index].T
    label = labelled(labels, [timeline.label[index]], lambda number: Label(names[number], "phase"))
    return Lane.of("phase", "phase", start, end, label)


def _partition(trace: Trace, window: tuple[int, int], labels: Labels) -> Lane:
    """Return a span for each run of one category; those of neighbouring steps are apart."""
    partition = activity(trace)
    index = _overlapping(partition.parts[:, 0], partition.parts[:, 1], window)
    category = partition.category[index].astype(np.int64)
    start, end, code = _runs(partition.parts[index], category, np.ones(len(index), np.bool_))

    def label_of(number: int) -> Label:
        name = TimeCategory(number).name.lower()
        return Label(name.replace("_", " "), name)

    return Lane.of("time", "category", start, end, labelled(labels, [code], label_of))


def _syncs(trace: Trace, window: tuple[int, int], labels: Labels, savings: SyncSavings) -> Lane:
    waits = syncs(trace)
    index = _overlapping(waits.start, waits.start + waits.blocked, window)
    texts, strings = waits.origin.texts, trace.events.strings
    names, paths = phases(trace).names, (*modules(trace).paths, "")
    module = modules_at(trace, tracks(trace)[waits.rows[index]], waits.start[index] + waits.blocked[index] // 2)
    columns: list[Numbers] = [
        waits.kind[index],
        waits.origin.op[index],
        waits.origin.line[index],
        trace.events.name[waits.rows[index]],
        module,
        waits.phase[index],
    ]

    def label_of(kind: int, op: int, line: int, call: int, inside: int, phase: int) -> Label:
        row = "|".join((SYNC_KINDS[kind], texts[op], texts[line], paths[inside], names[phase]))
        saved = savings.get((trace.rank, row))
        note = f"a step without all such syncs is {format_value(saved, Unit.NS)} shorter (replay)" if saved else ""
        name = f"{SYNC_KINDS[kind]} sync: {texts[op] or strings[call]}"
        return Label(name, "sync_wait", texts[op], texts[line], note)

    label = labelled(labels, columns, label_of)
    start, end = waits.start[index], waits.start[index] + waits.blocked[index]
    return Lane.of("syncs", "sync", start, end, label, extra=waits.cost[index])


def _collectives(trace: Trace, window: tuple[int, int], labels: Labels) -> Lane:
    """Return the kernels of collectives, or their calls if there are no kernels."""
    work, calls, kernels = device_work(trace), collective_calls(trace), collective_kernels(trace)
    if len(kernels.work):
        call, name = kernels.call, kernels.name
        start, end = work.start[kernels.work], work.end[kernels.work]
    else:
        call, name = np.arange(len(calls)), calls.name
        start, end = trace.events.ts[calls.rows], trace.events.end[calls.rows]
    order = np.argsort(start, kind="stable")
    start, end, call, name = start[order], end[order], call[order], name[order]
    index = _overlapping(start, end, window)
    size = np.where(call >= 0, calls.size[call] if len(calls) else -1, -1)[index]

    def label_of(number: int, size_bytes: int) -> Label:
        size_text = f" {format_value(size_bytes, Unit.BYTES)}" if size_bytes >= 0 else ""
        return Label(COLLECTIVE_NAMES[number] + size_text, "exposed_comm")

    label = labelled(labels, [name[index], size], label_of)
    return Lane.of("collectives", "collective", start[index], end[index], label)


def _overlapping(start: NDArray[np.int64], end: NDArray[np.int64], window: tuple[int, int]) -> NDArray[np.int64]:
    """Return the spans that overlap the window; empty ones count where they begin."""
    return np.flatnonzero((start < window[1]) & ((end > window[0]) | (start >= window[0])))


def _runs(
    parts: Spans, value: NDArray[np.int64], is_kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end, value) of each run of touching parts with one value, of those that are kept."""
    parts, value = parts[is_kept], value[is_kept]
    opens = np.r_[True, (parts[1:, 0] != parts[:-1, 1]) | (value[1:] != value[:-1])][: len(parts)]
    first = np.flatnonzero(opens)
    last = np.r_[first[1:], len(parts)][: len(first)] - 1
    return parts[first, 0], parts[last, 1], value[first]


def merge_short(lane: Lane, finest_ns: int) -> Lane:
    """Return the lane with each run of shorter spans that start within one cell of `finest_ns` as one block.

    Cells are counted from time 0 of the trace. Blocks keep the number of spans and their total duration; a single short
    span stays as it is. A block's `extra` is the sum of what its spans have.
    """
    first = _opens(lane, finest_ns)
    if len(first) == len(lane):
        return lane
    num = np.add.reduceat(lane.num, first)
    is_block = num > lane.num[first]
    extra = lane.extra
    if extra is not None:
        total = np.add.reduceat(np.maximum(extra, 0), first)
        extra = np.where(is_block, total, extra[first])
    return replace(
        lane,
        start=lane.start[first],
        end=np.maximum.reduceat(lane.end, first),
        label=np.where(is_block, BLOCK, lane.label[first]),
        num=num,
        busy=np.add.reduceat(lane.busy, first),
        extra=extra,
    )


def finest_ns(lanes: Sequence[Lane], most: int) -> int:
    """Return the least duration, 0 or a power of 2 ns, below which merging leaves at most `most` spans in all."""
    if sum(map(len, lanes)) <= most:
        return 0

    def is_coarse(exponent: int) -> bool:
        return sum(len(_opens(lane, 1 << exponent)) for lane in lanes) <= most

    return 1 << bisect_left(range(40), True, 1, key=is_coarse)  # at most 2**40 ns, 18 minutes


def _opens(lane: Lane, finest_ns: int) -> NDArray[np.int64]:
    """Return the index of the first span of each block, and of each span that is none."""
    if len(lane) == 0 or finest_ns <= 0:
        return np.arange(len(lane))
    joins = lane.busy < finest_ns
    cell = lane.start // finest_ns
    same = joins[1:] & joins[:-1] & (cell[1:] == cell[:-1])
    return np.flatnonzero(np.r_[True, ~same])
