"""Contributions to a delta: each part of the common graph's edges with a label, its time on both sides, its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_graph import CommonGraph
from traceq.causes.common_steps import CommonSteps
from traceq.causes.edges import IN_A, IN_B, IN_BOTH, EdgeKind, Edges
from traceq.causes.holds import HoldKind
from traceq.causes.host_line import ONCE, HostLine
from traceq.compare.cost_centers import actors
from traceq.compare.labels import (
    LOADER,
    QUEUE,
    START,
    WAITS,
    Label,
    Labelled,
    LabelNumbers,
    device_labels,
    hold_labels,
    sync_calls,
    unlike_pairs,
    with_regions,
)
from traceq.facts.events.copies import PAGEABLE_COPY
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.timeline.host_pauses import PAUSES
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import Numbers, group
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

_NEARLY_ALL = 0.9
"""Part of the time of what one side alone does: the other may do it in the odd place."""
_VALUE_READERS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")


class Part:
    """Part of a step that a contribution belongs to, by which times are compared with each other."""

    HOST, KERNEL, COLLECTIVE, WAIT = range(4)


@frozen(eq=False, slots=False)  # no slots: the sums are kept
class Contributions:
    """C contributions: one per edge, of the host one per edge and owner; of accounts one per label and step.

    `label` int32[C] into `labels`; `lines` are these labels' lines with numbers; `step`, `gap` int32[C] as of the
    graph; `part` int8[C] of Part; `a_ns`, `b_ns` int64[C] on either side, in all steps; `share` float64[C]; `sides`
    int8[C] as of edges; `num` int[C]: B's events minus A's in the paired steps; `moved` int64[C]: bytes,
    likewise; `num_steps` int64[C]: of the paired steps, those that the rank counts, which may be fewer than the
    explained one's; `is_copied`, `is_waited` bool[C]: of a sync, its copy and its wait. `calls` float64[labels]: B's
    syncs per step minus A's, on all threads. `inner`: of labels of accounts, by how much longer B is in each op inside.
    `others`: what B calls ops that have A's names here. `is_paired`: by place, which accounts do not know. `traces`: A
    and B of the first rank. `ranks`: numbers of all ranks. `num_paired` steps take `steps_ns` in all, the mean of both
    sides.
    """

    labels: tuple[Label, ...]
    lines: tuple[str, ...]
    label: NDArray[np.int32]
    step: NDArray[np.int32]
    gap: NDArray[np.int32]
    part: NDArray[np.int8]
    a_ns: NDArray[np.int64]
    b_ns: NDArray[np.int64]
    share: NDArray[np.float64]
    sides: NDArray[np.int8]
    num: Numbers
    moved: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    is_copied: NDArray[np.bool_]
    is_waited: NDArray[np.bool_]
    calls: NDArray[np.float64]
    inner: Mapping[int, Mapping[str, float]]
    others: Mapping[str, str]
    is_paired: bool
    is_swapped: bool
    traces: tuple[Trace, Trace]
    ranks: tuple[int, ...]
    num_paired: int
    steps_ns: float

    @cached_property
    def ns_of_labels(self) -> NDArray[np.int64]:
        """int64[2, labels]: ns of A and of B, in all steps."""
        sums = np.zeros((2, len(self.labels)), np.int64)
        for of_side, ns in zip(sums, (self.a_ns, self.b_ns), strict=True):
            np.add.at(of_side, self.label, ns)
        return sums

    @cached_property
    def is_alone(self) -> NDArray[np.bool_]:
        """bool[2, labels]: nearly all of the time is A's, is B's."""
        ns = self.ns_of_labels
        return np.asarray((ns > 0) & (ns >= _NEARLY_ALL * ns.sum(axis=0)))

    @cached_property
    def more_places(self) -> Mapping[str, int]:
        """By what the host does, in how many more places between two calls B does it than A."""
        more: Counter[str] = Counter()
        for side, sign in ((self.a_ns, -1), (self.b_ns, 1)):
            nums = np.bincount(self.label[(self.part == Part.HOST) & (side > 0)], minlength=len(self.labels)).tolist()
            for label, num in zip(self.labels, nums, strict=True):
                more[label.work] += sign * num
        return more

    def is_gone(self, label: Label, num: int) -> bool:
        """Return whether B's host does that in fewer places, by most of `num` where it does it no more.

        Else it only moved.
        """
        return 2 * -self.more_places[label.work] >= num

    def is_new(self, label: Label, num: int) -> bool:
        """Return the same of what B's host does in more places."""
        return 2 * self.more_places[label.work] >= num


@frozen(eq=False)
class _Columns:
    """The columns of Contributions that every rank has."""

    label: NDArray[np.int32]
    edge: NDArray[np.int32]
    part: NDArray[np.int8]
    a_ns: NDArray[np.int64]
    b_ns: NDArray[np.int64]
    sides: NDArray[np.int8]
    num: NDArray[np.int8]
    moved: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    is_copied: NDArray[np.bool_]
    is_waited: NDArray[np.bool_]
    share: NDArray[np.float64]


@frozen(eq=False)
class _EdgeParts:
    """Edges, or a part of each side of one: with what `Contributions` has of them, `a`, `b` as of edges."""

    edge: NDArray[np.int64]
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    a_ns: NDArray[np.int64]
    b_ns: NDArray[np.int64]
    sides: NDArray[np.int8]


_OF_WORK = (EdgeKind.DURATION, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.AWAIT)
_OF_HOLD = (EdgeKind.HOLD, EdgeKind.SYNC, EdgeKind.HAND_OVER)


def contributions(common: CommonSteps) -> Contributions:
    """Return all contributions to the delta of the paired steps: `share` times (`b_ns` - `a_ns`) adds up to it."""
    tables = [[(device_labels(line), hold_labels(line)) for line in lines] for lines in (common.a, common.b)]
    names = [[label for of_rank in side for table in of_rank for label in table[0]] for side in tables]
    explained = common.a[common.explained].trace, common.b[common.explained].trace
    labels = LabelNumbers(names, explained, is_swapped=common.is_swapped)
    ranks = [_of_rank(common, labels, index, (tables[0][index], tables[1][index])) for index in range(len(common.a))]
    columns = {field.name: _joined([getattr(rank, field.name) for rank in ranks]) for field in fields(_Columns)}
    edge, ns = columns.pop("edge"), np.where(columns["part"] == Part.WAIT, 0, columns["a_ns"] + columns["b_ns"])
    step, gap = common.graph.step[edge], common.graph.gap[edge]
    columns["label"] = with_regions(columns["label"], gap, columns["sides"], ns, labels)
    change_ns = columns["share"] * (columns["b_ns"] - columns["a_ns"])
    if _begins_unlike(common) and np.abs(change_ns[step < 0]).sum() > np.abs(change_ns[step >= 0]).sum():
        columns["label"] = np.where(step < 0, np.int32(labels.number(START)), columns["label"])
    return Contributions(
        labels=labels.labels,
        lines=labels.lines,
        step=step,
        gap=gap,
        calls=_calls(common, labels.labels),
        inner={},
        others=common.others,
        is_paired=True,
        is_swapped=common.is_swapped,
        traces=(common.a[0].trace, common.b[0].trace),
        ranks=tuple(line.trace.rank for line in common.a),
        num_paired=common.graph.num_steps,
        steps_ns=_steps_ns(common.graph),
        **columns,
    )


def _begins_unlike(common: CommonSteps) -> bool:
    """Return whether the device of one side was further behind when its trace began."""
    num_a, num_b = (int(device_work(side[common.explained].trace).before_window.sum()) for side in (common.a, common.b))
    return num_a != num_b


def _steps_ns(graph: CommonGraph) -> float:
    begin, end = graph.windows.T
    return float(sum((time[end] - time[begin]).sum() for time in (graph.time_a, graph.time_b))) / 2


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the parts of a column, without a copy of a single one."""
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _as_int32(*parts: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.concatenate(parts, dtype=np.int32, casting="same_kind")


def _of_rank(
    common: CommonSteps, labels: LabelNumbers, index: int, tables: tuple[tuple[Labelled, Labelled], ...]
) -> _Columns:
    """Return the contributions of one rank; `tables` are the labels of its work and its holds on either side."""
    graph, lines, rank = common.graph, (common.a[index], common.b[index]), index if len(common.a) > 1 else -1
    of_work, of_hold = ([labels.numbers(side[part][0], rank)[side[part][1]] for side in tables] for part in (0, 1))
    on_rank = graph.rank == index
    is_loader = _is_loader(lines, graph.edges)
    by_owner = (graph.edges.kind == EdgeKind.HOST) | is_loader
    edges = np.flatnonzero(on_rank & ~by_owner)
    host = graph.host.take((on_rank & by_owner)[graph.host.edge])
    of_owner = _owner_labels(graph, labels, sorted_unique(host.owner), rank)
    copied, reordered = _join_sync_parts(common, labels.labels, index, of_work, of_hold, of_owner)
    parts = _parted(common, labels.labels, edges, of_work, of_hold)
    edges, kind, a, b = parts.edge, graph.edges.kind[parts.edge], parts.a, parts.b
    is_wait = np.isin(kind, (EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.AWAIT)) & (a >= 0) & (b >= 0)
    label = np.where(is_wait, labels.number(WAITS), labels.number(START))
    label[kind == EdgeKind.QUEUE] = labels.number(QUEUE, rank)
    for kinds, of_side in ((_OF_WORK, of_work), (_OF_HOLD, of_hold)):
        chosen = np.flatnonzero(np.isin(kind, kinds) & ~is_wait)
        label[chosen] = labels.joined(np.r_[of_side[0], -1][a[chosen]], np.r_[of_side[1], -1][b[chosen]])
    is_work, runs = np.isin(kind, _OF_WORK), kind == EdgeKind.DURATION
    is_copied = np.r_[copied[0], False][np.where(is_work, a, -1)] | np.r_[copied[1], False][np.where(is_work, b, -1)]
    num, moved = _events(lines, kind, a, b, is_copied)
    outside = np.flatnonzero(graph.step[edges] < 0)
    num[outside] = moved[outside] = 0
    not_host = np.zeros(len(host.edge), np.bool_)
    num_steps = max(len(sorted_unique(graph.step[on_rank & (graph.step >= 0)])), 1)
    of_loader = _loader_labels(graph, labels, sorted_unique(host.owner), rank, of_owner)
    of_host, loading = of_owner[host.owner], np.flatnonzero(is_loader[host.edge])
    of_host[loading] = of_loader[host.owner[loading]]
    of_one = np.where(host.a_ns == 0, np.int8(IN_B), np.where(host.b_ns == 0, np.int8(IN_A), np.int8(IN_BOTH)))
    columns = _Columns(
        label=_as_int32(label, of_host),
        edge=_as_int32(edges, host.edge),
        part=np.r_[_parts(lines, kind, a, b), np.full(len(host.edge), Part.HOST, np.int8)],
        a_ns=np.r_[parts.a_ns, host.a_ns],
        b_ns=np.r_[parts.b_ns, host.b_ns],
        sides=np.r_[parts.sides, of_one],
        num=np.r_[num, not_host.view(np.int8)],
        moved=np.r_[moved, not_host],
        num_steps=np.broadcast_to(np.int64(num_steps), len(label) + len(of_host)),
        is_copied=np.r_[is_copied & runs, not_host],
        is_waited=np.r_[np.isin(kind, _OF_HOLD) | (is_copied & ~runs), not_host],
        share=common.share[np.r_[edges, host.edge]],
    )
    works = [np.r_[np.where(is_work, side, -1), np.full(len(host.edge), -1)] for side in (a, b)]
    return _with_reordered_copies(graph, columns, reordered, works)


@frozen
class _Reordered:
    """Copies that both sides make as often, in another order, one for each name.

    `works`: bool[D] of either side; `exposed` is the part of their time in which nothing else runs, on the side where a
    sync waits for them, and `label` is that sync's.
    """

    works: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    exposed: float
    label: int


def _with_reordered_copies(
    graph: CommonGraph, columns: _Columns, reordered: Sequence[_Reordered], works: Sequence[NDArray[np.int64]]
) -> _Columns:
    """Return the contributions, copies that came in another order charged by how much longer they are.

    The graph has no pair for these: each is work of one side, which other work of the other side replaced. What their
    order wins beyond their own time is of the sync that enforced it. `works` int64[C]: the work of either side, else
    -1. Sums by step stay the same.
    """
    share, step, ns = columns.share.copy(), graph.step[columns.edge], columns.b_ns - columns.a_ns
    runs = graph.edges.kind[columns.edge] == EdgeKind.DURATION
    more: list[tuple[int, int, int]] = []
    for each in reordered:
        selected = np.logical_or(*(np.r_[of, False][work] for of, work in zip(each.works, works, strict=True)))
        for number in sorted_unique(step[selected]).tolist():
            rows = np.flatnonzero(selected & (step == number))
            before = float((share[rows] * ns[rows]).sum())
            share[rows] = np.where(runs[rows], each.exposed, 0.0)
            rest = round(before - float((share[rows] * ns[rows]).sum()))
            more.append((each.label, int(columns.edge[rows[0]]), rest))
    if not more:
        return columns
    label, edge, rests = (np.array(column, np.int64) for column in zip(*more, strict=True))
    added = {
        "label": label,
        "edge": edge,
        "part": np.full(len(more), Part.WAIT),
        "a_ns": np.maximum(-rests, 0),
        "b_ns": np.maximum(rests, 0),
        "sides": np.full(len(more), IN_BOTH),
        "num_steps": np.full(len(more), columns.num_steps.max(initial=1)),
        "is_waited": np.ones(len(more), np.bool_),
        "share": np.ones(len(more)),
    }
    columns, zeros, all_columns = replace(columns, share=share), np.zeros(len(more)), dict[str, NDArray[Any]]()
    for field in fields(_Columns):
        column = getattr(columns, field.name)
        all_columns[field.name] = np.r_[column, added.get(field.name, zeros).astype(column.dtype)]
    return _Columns(**all_columns)


def _parted(
    common: CommonSteps,
    labels: tuple[Label, ...],
    edges: NDArray[np.int64],
    of_work: list[NDArray[np.int64]],
    of_hold: list[NDArray[np.int64]],
) -> _EdgeParts:
    """Return some edges, those of two works that did not replace each other as a part of each side."""
    graph, weights = common.graph, common.weights
    kind, a, b = graph.edges.kind[edges], graph.edges.a[edges], graph.edges.b[edges]
    label_a, label_b = np.full(len(edges), -1), np.full(len(edges), -1)
    for chosen, of_side in ((kind == EdgeKind.DURATION, of_work), (np.isin(kind, _OF_HOLD), of_hold)):
        label_a[chosen], label_b[chosen] = (np.r_[of_side[n], -1][side[chosen]] for n, side in enumerate((a, b)))
    counts = np.isin(kind, (EdgeKind.DURATION, EdgeKind.HOLD)) & (graph.step[edges] >= 0)
    unlike = unlike_pairs(labels, label_a, label_b, counts)
    only_a = np.flatnonzero(unlike)
    none, b_ns, sides = np.full(len(only_a), -1), weights.b[edges], graph.edges.sides[edges]
    parts = _EdgeParts(
        edge=np.r_[edges, edges[only_a]],
        a=np.r_[a, none],
        b=np.r_[b, b[only_a]],
        a_ns=np.r_[weights.a[edges], none * 0],
        b_ns=np.r_[b_ns, b_ns[only_a]],
        sides=np.r_[sides, np.full(len(only_a), IN_B, np.int8)],
    )
    parts.b[only_a], parts.b_ns[only_a], parts.sides[only_a] = -1, 0, IN_A
    return parts


def _owner_labels(graph: CommonGraph, labels: LabelNumbers, used: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
    """Return int64[owners]: the label of the host owners `used` on a rank, -1 for others."""
    owners = (graph.host.owners[number] for number in used.tolist())
    numbers = np.full(len(graph.host.owners), -1)
    numbers[used] = labels.numbers((Label("host", o.name, o.inner, o.phase, o.line, o.module) for o in owners), rank)
    return numbers


def _is_loader(lines: tuple[HostLine, HostLine], edges: Edges) -> NDArray[np.bool_]:
    """Return which edges are waits for the data loader: bool[E]."""
    is_hold = edges.kind == EdgeKind.HOLD
    kinds = [
        np.r_[line.holds.kind, -1][np.where(is_hold & (refs < len(line.holds)), refs, -1)]
        for line, refs in zip(lines, (edges.a, edges.b), strict=True)
    ]
    return np.asarray(np.maximum(*kinds) == HoldKind.LOADER)


def _loader_labels(
    graph: CommonGraph, labels: LabelNumbers, used: NDArray[np.int64], rank: int, of_owner: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[owners]: labels while the host waits for the loader, by what it does there if the trace says."""
    numbers = of_owner.copy()
    for number in used.tolist():
        owner = graph.host.owners[number]
        if not owner.inner and not owner.line:
            numbers[number] = labels.number(replace(LOADER, phase=owner.phase), rank)
    return numbers


def _join_sync_parts(
    common: CommonSteps,
    labels: tuple[Label, ...],
    index: int,
    of_work: list[NDArray[np.int64]],
    of_hold: list[NDArray[np.int64]],
    of_owner: NDArray[np.int64],
) -> tuple[list[NDArray[np.bool_]], list[_Reordered]]:
    """Give a sync that only one side has its copy and the host time of the op that asks for it, in place.

    Return (which work are such copies: bool[D] of either side, the copies that are none as they only change places).
    """
    graph, copied = common.graph, []
    on_rank, host = graph.rank == index, graph.host
    held = np.flatnonzero(on_rank & (graph.edges.kind == EdgeKind.HOLD) & (graph.edges.sides != IN_BOTH))
    runs = on_rank & (graph.edges.kind == EdgeKind.DURATION)
    by_op: dict[tuple[str, str], list[int]] = {}
    for number in sorted_unique(host.owner[on_rank[host.edge]]).tolist():
        owner = host.owners[number]
        if owner.name not in (ONCE, PAUSES):  # the device starts inside an op, whether that op asks for a sync or not
            by_op.setdefault((owner.phase, owner.inner), []).append(number)
    totals = [np.bincount(host.owner, weights=ns, minlength=len(host.owners)) for ns in (host.a_ns, host.b_ns)]
    lines, refs_of = (common.a[index], common.b[index]), (graph.edges.a, graph.edges.b)
    copies = _reordered_copies(lines, graph.edges.a[runs], graph.edges.b[runs])
    reordered: dict[int, _Reordered] = {}
    for side, (line, refs, other) in enumerate(zip(lines, refs_of, refs_of[::-1], strict=True)):
        hold = refs[held][refs[held] >= 0]
        is_single, is_sync = np.zeros(len(device_work(line.trace)), np.bool_), np.zeros(len(line.holds), np.bool_)
        is_single[refs[runs & (refs >= 0) & (other < 0)]] = True
        is_sync[hold] = (line.holds.kind[hold] < HoldKind.STREAM) & (line.holds.call[hold] >= 0)
        edge = np.flatnonzero(is_sync[line.holds.wait] & (is_single | copies[side])[line.holds.work])
        is_moved = copies[side][line.holds.work[edge]]
        moved, of_sync = line.holds.work[edge[is_moved]], of_hold[side][line.holds.wait[edge[is_moved]]]
        for work, label in zip(moved.tolist(), of_sync.tolist(), strict=True):
            if (name := int(line.names[work])) not in reordered:
                works = [each & (of.names == name) for each, of in zip(copies, lines, strict=True)]
                reordered[name] = _Reordered((works[0], works[1]), _exposed_part(line.trace, works[side]), label)
        edge = edge[~is_moved]
        of_work[side][line.holds.work[edge]] = of_hold[side][line.holds.wait[edge]]
        is_copied = np.zeros(len(is_single), np.bool_)
        is_copied[line.holds.work[edge]] = True
        copied.append(is_copied)
        for number, op in sorted(_enclosing_ops(line, hold, of_hold[side])):
            for owner in by_op.get((labels[number].phase, op), []):
                if op in _VALUE_READERS or totals[1 - side][owner] == 0:
                    of_owner[owner] = number
    return copied, list(reordered.values())


def _reordered_copies(lines: Sequence[HostLine], a: NDArray[np.int64], b: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Return which work of either side, bool[D], are copies in another order, given the edges of their durations.

    They have no pair of their name, and both sides have as many of that name.
    """
    name_a, name_b = (np.r_[line.names, -1][refs] for line, refs in zip(lines, (a, b), strict=True))
    result, nums = [], []
    for line, refs in zip(lines, (a, b), strict=True):
        work = device_work(line.trace)
        unpaired = refs[(name_a != name_b) & (refs >= 0)]
        is_copy = np.zeros(len(work), np.bool_)
        is_copy[unpaired] = line.trace.events.category[work.rows[unpaired]] == Category.MEMCPY
        result.append(is_copy)
        nums.append(np.bincount(line.names[is_copy], minlength=1 + max(int(of.names.max(initial=0)) for of in lines)))
    as_often = nums[0] == nums[1]
    return [is_copy & as_often[np.where(is_copy, line.names, 0)] for is_copy, line in zip(result, lines, strict=True)]


def _exposed_part(trace: Trace, copies: NDArray[np.bool_]) -> float:
    """Return the part of the time of some copies, bool[D], in which nothing else runs on the device."""
    pieces, work = activity(trace), device_work(trace)
    ns = pieces.ns_of_work(pieces.among(TimeCategory.EXPOSED_MEMCPY), len(work))
    return min(1.0, float(ns[copies].sum()) / max(int((work.end - work.start)[copies].sum()), 1))


def _enclosing_ops(line: HostLine, hold: Numbers, of_hold: NDArray[np.int64]) -> set[tuple[int, str]]:
    """Return (label of the hold, name of an op around it) for some holds; an op that allocates does so on the side."""
    events, result = line.trace.events, set[tuple[int, str]]()
    hold = hold[(line.holds.row[hold] >= 0) & (line.holds.kind[hold] < HoldKind.ALLOC)]
    row_track = tracks(line.trace)[line.holds.row[hold]]
    for track, ops in host_ops(line.trace).items():
        on_track = hold[row_track == track]
        op = ops.innermost_at(events.ts[line.holds.row[on_track]])
        while len(on_track := on_track[op >= 0]):
            op = op[op >= 0]
            groups = group([of_hold[on_track], events.name[ops.rows[op]]])
            result |= {(number, events.strings[name]) for number, name in groups.keys.tolist()}
            op = ops.parent[op]
    return result


def _parts(
    lines: tuple[HostLine, HostLine], kind: NDArray[np.int8], a: NDArray[np.int64], b: NDArray[np.int64]
) -> NDArray[np.int8]:
    """Return the Part of edges."""
    communicates = [np.r_[is_communication(line.trace), False] for line in lines]
    part = np.full(len(kind), Part.WAIT, np.int8)
    part[kind == EdgeKind.HOLD] = Part.HOST
    runs = kind == EdgeKind.DURATION
    part[runs] = np.where(communicates[0][a[runs]] | communicates[1][b[runs]], Part.COLLECTIVE, Part.KERNEL)
    return part


def _events(
    lines: tuple[HostLine, HostLine],
    kind: NDArray[np.int8],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    is_copied: NDArray[np.bool_],
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Return (B's events minus A's, B's bytes minus A's) of edges: kernels, copies that no sync waits for, syncs."""
    is_hold, runs = kind == EdgeKind.HOLD, kind == EdgeKind.DURATION
    blocks = [
        np.r_[(line.holds.call >= 0) & (line.holds.kind < HoldKind.LOADER), False][np.where(is_hold, refs, -1)]
        for line, refs in zip(lines, (a, b), strict=True)
    ]
    is_work = runs & ~is_copied
    copies = [_copied_names(line)[np.where(is_hold, refs, -1)] for line, refs in zip(lines, (a, b), strict=True)]
    same = is_hold & (a >= 0) & (b >= 0) & (copies[0] == copies[1])  # blocked in one run, and not in the other
    blocks = [side & ~same for side in blocks]
    num = (blocks[1] | (is_work & (b >= 0))).astype(np.int8) - (blocks[0] | (is_work & (a >= 0)))
    sizes = [np.r_[actors(line.trace).bytes[: len(device_work(line.trace))], 0] for line in lines]
    return num, sizes[1][np.where(runs, b, -1)] - sizes[0][np.where(runs, a, -1)]


def _copied_names(line: HostLine) -> NDArray[np.int64]:
    """Return int64[H + 1]: the number of the copy, by name and memory, that each hold waits for, -1 for others."""
    names = np.full(len(line.holds) + 1, -1)
    is_copy = line.holds.kind[line.holds.wait] < HoldKind.STREAM
    work = line.holds.work[is_copy]
    is_pageable = matching(line.trace.events, device_work(line.trace).rows[work], PAGEABLE_COPY)
    names[line.holds.wait[is_copy]] = 2 * line.names[work] + is_pageable
    return names


def _calls(common: CommonSteps, labels: tuple[Label, ...]) -> NDArray[np.float64]:
    """Return float64[labels]: B's syncs of a label's op and phase per paired step minus A's, on whatever thread.

    Whether a copy and the synchronize after it are one call may depend on time: their op and phase do not.
    """
    index: dict[tuple[str, str, int], list[int]] = {}
    for number, label in enumerate(labels):
        if label.kind == "sync":
            index.setdefault((*_op_and_phase(label), max(label.rank, 0)), []).append(number)
    change = np.zeros(len(labels))
    for side, sign, lines in ((0, -1, common.a), (1, 1, common.b)):
        for rank, line in enumerate(lines):
            windows = (
                steps(line.trace).host[common.graph.steps[:, side]]
                if rank == common.explained
                else steps(line.trace).host
            )
            for label, num in sync_calls(line, windows).items():
                change[index.get((*_op_and_phase(label), rank), [])] += sign * num
    return change


def _op_and_phase(label: Label) -> tuple[str, str]:
    return label.name.partition(" ")[2], label.phase
