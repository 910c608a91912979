"""Host line of one rank: when the host launches, waits and marks steps; the pieces: what its threads do in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from traceq.causes.anchors import AnchorKind, Anchors, anchors
from traceq.facts.events.copies import copy_kind
from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import outermost_ops
from traceq.facts.events.nesting import host_boundaries, host_ops, tracks
from traceq.facts.timeline.active_thread import ActiveThread, ThreadChains, active_thread, paired_chains
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.host_pauses import PAUSES, host_pauses
from traceq.facts.timeline.once import once
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.python_places import python_places
from traceq.frozen import frozen
from traceq.grouping import Numbers, group
from traceq.intervals import contains, count_before, sorted_unique, span_index
from traceq.model import Trace

ONCE = "one-time work"
"""Name of all host time that is once."""


@frozen
class HostOwner:
    """What the host does: the outermost op and the `inner`most one, or a place in Python without an `inner` op."""

    name: str
    inner: str
    phase: str
    line: str
    module: str


@frozen(eq=False)
class HostLine(Anchors):
    """Anchors of one rank with what tells them from others.

    `keys` int64[N, 3]: an anchor of the other side with the same key may be the same one, from the strictest key to
    the loosest. `names` int64[D] number of the name of each piece of device work.
    """

    keys: NDArray[np.int64]
    names: NDArray[np.int64]


@frozen(eq=False)
class HostPieces:
    """P pieces of host time between the anchors of one rank.

    `segment` int64[P] (between s and s + 1 of the anchors `by_chain`), `owner` int64[P] into `owners`, `ns` int64[P];
    segments of one owner occur once.
    """

    segment: NDArray[np.int64]
    owner: NDArray[np.int64]
    ns: NDArray[np.int64]
    owners: tuple[HostOwner, ...]


class _Numbers:
    """Numbers of texts that two sides share, in order of first use; a copy is the same from whatever memory.

    `same`: texts that count as others.
    """

    def __init__(self, same: Mapping[str, str]) -> None:
        self._numbers: dict[str, int] = {}
        self._same = same

    def of_strings(self, strings: tuple[str, ...] | list[str], used: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[len(strings)]: the number of each string whose index is in `used`, else -1."""
        numbers = np.full(len(strings), -1)
        for index in sorted_unique(used).tolist():
            text = self._same.get(strings[index], strings[index])
            numbers[index] = self._numbers.setdefault(copy_kind(text).direction, len(self._numbers))
        return numbers


def host_lines(
    a: Trace, b: Trace, queue_length: int, kernels: Mapping[str, str] = MappingProxyType({})
) -> tuple[HostLine, HostLine]:
    """Return the host lines of both sides, given the length of the launch queue, 0 if it fills on none.

    `kernels`: those of A that count as some of B.
    """
    numbers, (of_a, of_b) = _Numbers(kernels), paired_chains(a, b)
    return _host_line(a, numbers, queue_length, of_a), _host_line(b, numbers, queue_length, of_b)


def without_keys(line: HostLine) -> HostLine:
    """Return a line that is aligned already: its keys take as much memory as the rest of it."""
    return replace(line, keys=np.empty((0, 3), np.int64))


def _host_line(trace: Trace, numbers: _Numbers, queue_length: int, chains: ThreadChains) -> HostLine:
    events, work, line = trace.events, device_work(trace), anchors(trace, queue_length, chains)
    names = numbers.of_strings(events.strings, events.name[work.rows].astype(np.int64))[events.name[work.rows]]
    columns = {field.name: getattr(line, field.name) for field in fields(Anchors)}
    return HostLine(**columns, keys=_keys(line, numbers, names), names=names)


def _keys(line: Anchors, numbers: _Numbers, names: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[N, 3]: of launches (op and kernels, kernels, op), of holds (kind and op, kind, kind), else kinds."""
    work, all_holds, kind, ref = device_work(line.trace), line.holds, line.kind, line.ref
    calls = sorted_unique(work.call[work.linked])
    called = all_holds.row >= 0
    ops = _innermost_ops(line.trace, numbers, np.r_[calls, all_holds.row[called]])
    call_op, hold_op = ops[: len(calls)], np.full(len(all_holds), -1)
    hold_op[called] = ops[len(calls) :]
    launched = _sequences(np.searchsorted(calls, work.call[work.linked]), names[work.linked], len(calls))
    keys = np.stack([mixed(kind)] * 3, axis=1)
    is_launch = np.flatnonzero(kind == AnchorKind.LAUNCH)
    call = np.searchsorted(calls, ref[is_launch])
    code = kind[is_launch]
    keys[is_launch, 0] = mixed(code, call_op[call], launched[call])
    keys[is_launch, 1] = mixed(code, launched[call])
    keys[is_launch, 2] = mixed(code, call_op[call])
    is_hold = np.flatnonzero((kind == AnchorKind.HOLD_BEGIN) | (kind == AnchorKind.HOLD_END))
    hold, code = ref[is_hold], kind[is_hold]
    keys[is_hold, 0] = mixed(code, all_holds.kind[hold], hold_op[hold])
    keys[is_hold, 1] = keys[is_hold, 2] = mixed(code, all_holds.kind[hold])
    return keys


def _innermost_ops(trace: Trace, numbers: _Numbers, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K]: the number of the name of the innermost op around each call, -1 outside all ops."""
    events, row_track = trace.events, tracks(trace)[rows]
    name = np.full(len(rows), -1)
    for ops, which in host_ops(trace).on(row_track):
        op = ops.innermost_at(events.ts[rows[which]])
        name[which] = np.where(op >= 0, events.name[ops.rows[op]], -1)
    return np.where(name >= 0, numbers.of_strings(events.strings, name[name >= 0])[name], -1)


def _sequences(group_ids: NDArray[np.int64], values: NDArray[np.int64], num_groups: int) -> NDArray[np.int64]:
    """Return int64[num_groups]: a hash of the sequence of values of each group."""
    order = np.argsort(group_ids, kind="stable")
    group_ids, values = group_ids[order], values[order]
    first = np.searchsorted(group_ids, np.arange(num_groups))
    place = np.arange(len(values)) - first[group_ids]
    total = np.zeros(num_groups, np.uint64)
    np.add.at(total, group_ids, mixed(values, place).view(np.uint64))
    return total.view(np.int64)


def mixed(*columns: Numbers) -> NDArray[np.int64]:
    """Return int64[N]: a hash of each row of the columns."""
    total = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    for column in columns:
        total ^= column.astype(np.int64).view(np.uint64)
        total *= np.uint64(0xFF51AFD7ED558CCD)
        total ^= total >> np.uint64(32)
    return total.view(np.int64)


def host_pieces(line: Anchors) -> HostPieces:
    """Return the host's time between anchors."""
    apart = once(line.trace).parts.ravel(), host_pauses(line.trace).ravel()
    boundaries = sorted_unique(host_boundaries(line.trace), *apart)
    columns, owners, num_before = [], list[HostOwner](), 0
    for number, threads in enumerate(line.chains):
        time_ns = line.time_ns[line.chain == number]
        cuts = sorted_unique(boundaries, time_ns)
        cuts = cuts[(cuts >= time_ns[0]) & (cuts <= time_ns[-1])]
        start, length = cuts[:-1], np.diff(cuts)
        segment = num_before + count_before(time_ns, start) - 1
        owner, of_chain = _owners(line.trace, start, threads)
        groups = group([segment, len(owners) + owner])
        columns.append((groups.keys[:, 0], groups.keys[:, 1], groups.totals(length)))
        owners += of_chain
        num_before += len(time_ns)
    segment, owner, ns = map(np.concatenate, zip(*columns, strict=True))
    return HostPieces(segment, owner, ns, tuple(owners))


def _owners(
    trace: Trace, time_ns: NDArray[np.int64], threads: tuple[int, ...]
) -> tuple[NDArray[np.int64], tuple[HostOwner, ...]]:
    """Return (int64[K] into the owners, the owners): what the active one of some threads does at each time."""
    active = active_thread(trace, time_ns, threads)
    names, phase, places = phases(trace).names, phases(trace).main_phase_at(time_ns), python_places(trace)
    place = np.zeros(len(time_ns), np.int64)
    for track, parts in places.parts.items():
        on_track = np.flatnonzero((active.track == track) & (active.op < 0))
        index = span_index(parts, time_ns[on_track])
        place[on_track[index >= 0]] = places.place[track][index[index >= 0]]
    is_op = active.op >= 0
    in_op = np.flatnonzero(is_op)  # with Python frames, of fewer instants than there are in none
    in_ops = active.take(in_op)
    origin = origins(trace, in_ops.track, in_ops.time_ns, in_ops.time_ns, innermost=in_ops.op)
    op, outermost, line, module = np.zeros((4, len(time_ns)), np.int64)
    op[in_op], outermost[in_op] = origin.op, _outermost_names(trace, in_ops)
    line[in_op], module[in_op] = origin.line, origin.module
    is_once, pauses = contains(once(trace).parts, time_ns), contains(host_pauses(trace), time_ns)
    apart = np.where(is_once, 2, pauses)
    columns = [np.where(is_op, op, -1 - place), outermost, phase, *(each for each in (line, module) if each.any())]
    groups = group([apart, *(np.where(apart, 0, column) for column in columns)])
    owners = []
    for first in groups.first.tolist():
        in_phase = names[phase[first]]
        if apart[first]:
            owners.append(HostOwner(ONCE if is_once[first] else PAUSES, "", "", "", ""))
        elif is_op[first]:
            name, texts = trace.events.strings[outermost[first]], origin.texts
            owners.append(HostOwner(name, texts[op[first]], in_phase, texts[line[first]], texts[module[first]]))
        else:
            between = places.places[place[first]]
            owners.append(HostOwner(between.name, "", in_phase, between.line, between.module))
    return groups.group_ids, tuple(owners)


def _outermost_names(trace: Trace, active: ActiveThread) -> NDArray[np.int64]:
    """Return int64[K]: the name (a string of the trace) of the outermost op at each time, all of which are in ops."""
    names = np.zeros(len(active.op), np.int64)
    for ops, which in host_ops(trace).on(active.track):
        names[which] = trace.events.name[ops.rows[outermost_ops(trace, ops)]][active.op[which]]
    return names
