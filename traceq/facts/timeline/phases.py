"""Phase of every instant of the main thread, and of every piece of device work.

The phases are, in this order: those the recording declares; the outermost annotations of the main thread, where two or
more names cover most of the steps; else the structure of a training step (optimizer, data loader, backward, forward).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.steps import main_track, steps
from traceq.intervals import (
    Spans,
    contains,
    earliest_owner,
    empty,
    measure,
    measure_common,
    sorted_unique,
    span_index,
    spans,
)
from traceq.model import Category, Trace

__all__ = ["BEFORE_WINDOW", "OTHER", "UNATTRIBUTED", "PhaseLabels", "Timeline", "phases"]

OTHER, BEFORE_WINDOW, UNATTRIBUTED = "other", "before_window", "unattributed"

_COVERED = 0.8
_NO_PHASE = re.compile(
    rf"^(nccl:|gloo:|hccl:|xccl:|Optimizer\.|{LOADER}|ProfilerStep"
    r"|DistributedDataParallel\.|FullyShardedDataParallel\.|FSDP::|## Call CompiledFxGraph)"
)
_STRUCTURE = ("optimizer", "zero_grad", "dataload", "backward", "forward")
_NAMED = {
    "optimizer": re.compile(r"^Optimizer\.step#"),
    "zero_grad": re.compile(r"^Optimizer\.zero_grad#"),
    "dataload": re.compile(f"^{LOADER}"),
}
_AUTOGRAD = re.compile(r"^autograd::engine")
_BACKWARD = re.compile(r"^autograd::engine|Backward[0-9]*$")


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What a thread is in, over time: `parts` int64[M, 2] ns sorted and disjoint, `label` int64[M] phase numbers."""

    parts: Spans
    label: NDArray[np.int64]

    def at(self, instants: NDArray[np.int64], otherwise: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Phase number at each instant, `otherwise` between the parts."""
        found = span_index(self.parts, instants)
        return np.where(found >= 0, self.label[found] if len(self.label) else otherwise, otherwise)


@dataclass(frozen=True, slots=True, eq=False)
class PhaseLabels:
    """`names` of P phases, the last three OTHER, BEFORE_WINDOW and UNATTRIBUTED; `rule` by which they were found;
    `main` the main thread's timeline, `threads` those of others by track; `of_work` int64[D] phase number of each
    piece of device work.
    """

    names: tuple[str, ...]
    rule: str
    main: Timeline
    threads: Mapping[int, Timeline]
    of_work: NDArray[np.int64]

    @property
    def other(self) -> int:
        """Number of OTHER."""
        return len(self.names) - 3

    @property
    def in_order(self) -> tuple[str, ...]:
        """The names as the main thread comes to them first."""
        numbers, first = np.unique(self.main.label, return_index=True)
        return tuple(dict.fromkeys((*(self.names[at] for at in numbers[np.argsort(first)].tolist()), *self.names)))

    def at(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[K]: phase number of the main thread at each instant."""
        return self.main.at(instants, self.other)

    def on(self, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[K]: phase of host calls: what their own thread is in, else what the main thread is in."""
        return _phase_of_calls(self.main, self.threads, self.other, track, instants)


@once_per_trace
def phases(trace: Trace) -> PhaseLabels:
    """Phases by the first rule that applies: `recorded`, `annotations` or `structure`."""
    names, rule, rows = _declared(trace)
    if rule == "structure":
        main, by_thread = _structure(trace)
    else:
        main, by_thread = _from_rows(trace, rows, names)
    work = device_work(trace)
    launch = _phase_of_calls(main, by_thread, len(names), tracks(trace)[work.call], trace.events.ts[work.call])
    unlinked = np.where(work.before_window, len(names) + 1, len(names) + 2)
    of_work = np.where(work.linked, launch, unlinked)
    return PhaseLabels((*names, OTHER, BEFORE_WINDOW, UNATTRIBUTED), rule, main, by_thread, of_work)


def _phase_of_calls(
    main: Timeline,
    threads: Mapping[int, Timeline],
    other: int,
    track: NDArray[np.int64],
    instants: NDArray[np.int64],
) -> NDArray[np.int64]:
    label = main.at(instants, other)
    for number, timeline in threads.items():
        mine = track == number
        label[mine] = timeline.at(instants[mine], label[mine])
    return label


def _declared(trace: Trace) -> tuple[tuple[str, ...], str, NDArray[np.int64]]:
    """(names, rule, rows that carry them)."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION)
    if trace.manifest is not None and trace.manifest.phases:
        wanted = re.compile("^(" + "|".join(map(re.escape, trace.manifest.phases)) + ")$")
        return trace.manifest.phases, "recorded", rows[matching(events, rows, wanted)]
    rows = rows[~matching(events, rows, _NO_PHASE)]
    outer = _outermost(trace, rows[tracks(trace)[rows] == main_track(trace)])
    names = _names_in_order(trace, outer)
    if len(names) < 2 or not _cover_the_steps(trace, outer):
        return _STRUCTURE, "structure", rows[:0]
    wanted = re.compile("^(" + "|".join(map(re.escape, names)) + ")$")
    return names, "annotations", rows[matching(events, rows, wanted)]


def _outermost(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of one thread that stand in no other of them, by start."""
    ts, end = trace.events.ts[rows], trace.events.end[rows]
    rows = rows[np.lexsort((rows, -end, ts))]
    end = trace.events.end[rows]
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, end])[:-1]
    outermost: NDArray[np.int64] = rows[end > reach]
    return outermost


def _names_in_order(trace: Trace, rows: NDArray[np.int64]) -> tuple[str, ...]:
    names, first = np.unique(trace.events.name[rows], return_index=True)
    return tuple(trace.events.strings[name] for name in names[np.argsort(first)].tolist())


def _cover_the_steps(trace: Trace, rows: NDArray[np.int64]) -> bool:
    host = steps(trace).host
    stepped = spans(host[:, 0], host[:, 1])
    annotated = spans(trace.events.ts[rows], trace.events.end[rows])
    return measure_common(annotated, stepped) >= _COVERED * measure(stepped)


def _from_rows(trace: Trace, rows: NDArray[np.int64], names: Sequence[str]) -> tuple[Timeline, dict[int, Timeline]]:
    """Timelines of the threads that carry annotations named like phases: (main thread's, the others')."""
    number = {name: index for index, name in enumerate(names)}
    of_row = tracks(trace)[rows]
    timelines = {int(t): _timeline(trace, rows[of_row == t], number) for t in sorted_unique(of_row)}
    main = timelines.pop(main_track(trace), Timeline(empty(), np.empty(0, np.int64)))
    return main, timelines


def _timeline(trace: Trace, rows: NDArray[np.int64], number: dict[str, int]) -> Timeline:
    rows = _outermost(trace, rows)
    parts, owners = earliest_owner(trace.events.ts[rows], trace.events.end[rows])
    label = [number[trace.events.text(row)] for row in rows[owners].tolist()]
    return Timeline(parts, np.array(label, np.int64))


def _structure(trace: Trace) -> tuple[Timeline, dict[int, Timeline]]:
    """Timelines by what optimizers, data loaders and the autograd engine write into every trace."""
    events, of_row, own = trace.events, tracks(trace), main_track(trace)
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    named = {name: rows[matching(events, rows, pattern)] for name, pattern in _NAMED.items()}
    everywhere = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    backward_threads = _backward_threads(trace)
    ops = events.rows(Category.CPU_OP)
    engine = rows[matching(events, rows, _AUTOGRAD)]
    open_backward = np.r_[engine[of_row[engine] == own], ops[np.isin(of_row[ops], backward_threads)]]
    host = steps(trace).host
    layers = [*_layers(trace, named, own), spans(events.ts[open_backward], events.end[open_backward])]
    main = _layered([*layers, spans(host[:, 0], host[:, 1])])
    others: dict[int, Timeline] = {}
    for track in sorted_unique(
        of_row[np.concatenate(list(named.values()))], np.array(backward_threads, np.int64)
    ).tolist():
        if track != own:
            backward = everywhere.reshape(1, 2) if track in backward_threads else empty()
            others[track] = _layered([*_layers(trace, named, track), backward])
    return main, others


def _layers(trace: Trace, named: dict[str, NDArray[np.int64]], track: int) -> list[Spans]:
    events = trace.events
    mine = [rows[tracks(trace)[rows] == track] for rows in named.values()]
    return [spans(events.ts[rows], events.end[rows]) for rows in mine]


def _layered(layers: list[Spans]) -> Timeline:
    """Each instant to the first layer that covers it; the label is the layer's number."""
    edges = sorted_unique(*(layer.ravel() for layer in layers))
    if len(edges) == 0:
        return Timeline(empty(), np.empty(0, np.int64))
    label = np.full(len(edges) - 1, -1)
    for number, layer in reversed(list(enumerate(layers))):
        label[contains(layer, edges[:-1])] = number
    parts = np.column_stack([edges[:-1], edges[1:]])
    return Timeline(parts[label >= 0], label[label >= 0])


def _backward_threads(trace: Trace) -> list[int]:
    """Threads other than the main one that run backward ops."""
    events = trace.events
    ops = events.rows(Category.CPU_OP)
    marks = ops[matching(events, ops, _BACKWARD) | (events.forward_thread[ops] > 0)]
    engine = events.rows(Category.ANNOTATION)
    marks = np.r_[marks, engine[matching(events, engine, _AUTOGRAD)]]
    found: list[int] = sorted_unique(tracks(trace)[marks]).tolist()
    return [track for track in found if track != main_track(trace)]
