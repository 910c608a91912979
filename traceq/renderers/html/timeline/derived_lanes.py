"""Lanes that traceq derives: phases, where the time goes, syncs, collectives, and the host's modules and lines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.host_stacks import host_pieces
from traceq.facts.timeline.modules import modules, modules_at
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.grouping import Numbers
from traceq.intervals import Spans
from traceq.model import Trace
from traceq.renderers.html.timeline.spans import Label, Labels, Lane, labelled
from traceq.units import Unit, format_value

__all__ = ["SyncSavings", "derived_lanes", "place_lanes"]


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
