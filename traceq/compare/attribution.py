"""Charge every nanosecond of a trace's steps to one cause: what one side of a diff spends its time on.

Busy time is charged to the work that runs; idle time to the sync that starves the device, else to what the host did
instead of launching the next piece of work: `data loader`, or `start of the loader's workers`, where it is in that, in
no op and at no known line. Accounts add up to the cells of the partition, and cells to the steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traceq.compare.cost_centers import Actors, actors
from traceq.compare.labels import Label, label_of
from traceq.facts.comm.collectives import collective_calls
from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import outermost_ops
from traceq.facts.events.nesting import host_ops, nest, tracks
from traceq.facts.ranks.exposed_waits import barriers
from traceq.facts.stalls.syncs import Syncs, blocked_on_record, syncs
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.call_sites import line_function
from traceq.facts.timeline.compilations import compilations
from traceq.facts.timeline.data_loading import loader_iterations, loader_waits
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.python_places import PYTHON, python_places
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import BUSY, HOST_CAUSED, TimeCategory, activity, ns_by_phase
from traceq.frozen import frozen
from traceq.grouping import Groups, Numbers, group
from traceq.intervals import Spans, advance, contains, earliest_owner, measure_within, sorted_unique, span_index, spans
from traceq.model import Category, Trace

Key = TypeVar("Key", str, tuple[str, str])


@frozen(eq=False)
class Accounts:
    """L causes of one side and its K counted steps.

    `ns`, `num`, `bytes` int64[L, K]: time, events (kernels, copies, calls) and what they moved; one hidden behind
    others has 0 ns. `inner`: of each label, the time of a host op by the innermost op, with that of Python between ops.
    """

    labels: tuple[Label, ...]
    ns: NDArray[np.int64]
    num: NDArray[np.int64]
    bytes: NDArray[np.int64]
    inner: tuple[Mapping[str, int], ...]


@frozen
class LedgerCell:
    """Time of one phase and category over all counted steps."""

    phase: str
    category: str
    ns: int


@frozen
class StepTime:
    """Time of one side: `num_steps` counted steps that take `total_ns` in total, to which the cells add up."""

    rank: int
    num_steps: int
    total_ns: int
    cells: tuple[LedgerCell, ...]


def step_time(trace: Trace) -> StepTime:
    """Return the cells of a trace's counted steps: without its accounts, which take several times as long."""
    windows, names, ns = steps(trace).window[steps(trace).counted], phases(trace).names, ns_by_phase(trace)
    cells = zip(*np.nonzero(ns), strict=True)
    return StepTime(
        rank=trace.rank,
        num_steps=len(windows),
        total_ns=int((windows[:, 1] - windows[:, 0]).sum()),
        cells=tuple(LedgerCell(names[p], TimeCategory(c).name.lower(), int(ns[p, c])) for p, c in cells),
    )


def accounts(trace: Trace, other: Trace | None = None) -> Accounts:
    """Return the accounts of a trace's counted steps, whose ns add up to them.

    Python of no known line between two ops that the `other` trace never calls is that of the first: it makes the calls.
    """
    parts, _, phase, actor = attributed_parts(trace)
    charged = actor if other is None else _with_python_between(trace, parts, actor, _called(other))
    is_python = charged != actor
    step = span_index(steps(trace).window[steps(trace).counted], parts[:, 0])
    inside = step >= 0
    return _accounts(trace, phase[inside], charged[inside], parts[inside], step[inside], is_python[inside])


def whole_mean(total: int, num: int) -> int:
    """Return the mean, rounded to an integer."""
    return (total + num // 2) // num


def means_per_step(
    of_a: Mapping[Key, int], of_b: Mapping[Key, int], num_a: int, num_b: int
) -> dict[Key, tuple[int, int]]:
    """Return (A's, B's) mean per step by key, in whole ns that add up to the rounded mean of each side.

    Keys that are equal on both sides are rounded first, from equal running sums, so that they stay equal.
    """

    def differs(key: Key) -> bool:
        return of_a.get(key, 0) * num_b != of_b.get(key, 0) * num_a

    keys = sorted(of_a.keys() | of_b.keys(), key=lambda key: (differs(key), key))
    a_ns = _per_step([of_a.get(key, 0) for key in keys], num_a)
    b_ns = _per_step([of_b.get(key, 0) for key in keys], num_b)
    return dict(sorted(zip(keys, zip(a_ns, b_ns, strict=True), strict=True)))


def _per_step(totals: Sequence[int], num_steps: int) -> list[int]:
    """Return means of totals in whole ns, rounded so that they add up to the rounded mean of their sum."""
    running = np.cumsum(np.array([0, *totals], np.int64))
    means: list[int] = np.diff((running + num_steps // 2) // num_steps).tolist()
    return means


def attributed_parts(trace: Trace) -> tuple[Spans, NDArray[np.int8], NDArray[np.int32], NDArray[np.int64]]:
    """Return the activity of a trace, cut where the actor changes: (parts, category, phase, actor)."""
    done, all_actors = activity(trace), actors(trace)
    if len(done.parts) == 0:
        return done.parts, done.category, done.phase, np.empty(0, np.int64)
    starved, starving_sync = _starvation(trace)
    op_parts, ops = _host_accounts(trace, all_actors)
    between = python_places(trace)
    cuts = sorted_unique(starved.ravel(), *(spans.ravel() for spans in (*op_parts.values(), *between.parts.values())))
    edges = sorted_unique(done.parts.ravel(), cuts[(cuts > done.parts[0, 0]) & (cuts < done.parts[-1, 1])])
    start_ns = edges[:-1]
    piece = np.searchsorted(done.parts[:, 0], start_ns, "right") - 1
    category, owner, call = done.category[piece], done.owner[piece], done.call[piece]
    places = {track: all_actors.first_place + place for track, place in between.place.items()}
    host = np.full(len(start_ns), all_actors.python)
    host = _host_actor(trace, between.parts, places, start_ns, owner, host)
    is_loading = contains(loader_waits(trace), start_ns) & (all_actors.line[host] == 0)
    loader = _loader(trace, all_actors, start_ns)
    host = np.where(is_loading, loader, host)
    host = _host_actor(trace, op_parts, ops, start_ns, owner, host)
    starved_index = span_index(starved, start_ns)
    sync = np.where(starved_index >= 0, starving_sync[starved_index] if len(starving_sync) else 0, -1)
    is_busy = np.isin(category, (*BUSY, TimeCategory.SPIN_WAIT))
    actor = np.where(is_busy, owner, host)
    actor = np.where(np.isin(category, HOST_CAUSED) & (sync >= 0), all_actors.first_sync + sync, actor)
    actor = np.where(call >= 0, all_actors.first_sync + call, actor)
    actor = np.where(category == TimeCategory.LAUNCH_LATENCY, all_actors.latency, actor)
    actor = np.where(category == TimeCategory.TAIL, all_actors.tail, actor)
    actor = np.where(category == TimeCategory.DATALOAD_WAIT, loader, actor)
    actor = np.where(category == TimeCategory.UNRECORDED, all_actors.unrecorded, actor)
    actor = np.where(category == TimeCategory.ONCE, all_actors.once, actor)
    actor = np.where(category == TimeCategory.COMPILING, _compilation(trace, all_actors, start_ns), actor)
    is_call = (category == TimeCategory.EXPOSED_COMM) & (owner < 0)
    actor = np.where(is_call, _open_collective(trace, all_actors, start_ns), actor)
    actor = _copies_to_syncs(trace, all_actors, actor)
    return np.column_stack([start_ns, edges[1:]]), category, done.phase[piece], actor


def _loader(trace: Trace, all_actors: Actors, instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the actor of the time in the loader at each instant: the start of its workers, or else the loader."""
    whole, owners = earliest_owner(*loader_iterations(trace).with_new_workers.T)
    index = span_index(whole, instants)
    return np.where(index >= 0, all_actors.first_start + np.r_[owners, 0][index], all_actors.loader)


def _compilation(trace: Trace, all_actors: Actors, instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the actor of what is compiled at each instant, anything outside."""
    whole, owners = earliest_owner(compilations(trace).start, compilations(trace).end)
    return np.asarray(all_actors.first_compilation + np.r_[owners, 0][span_index(whole, instants)])


def _starvation(trace: Trace) -> tuple[Spans, NDArray[np.int64]]:
    """Return (spans of idle time charged to a sync, up to its cost; index of that sync)."""
    if len(device_work(trace)) == 0:
        return np.empty((0, 2), np.int64), np.empty(0, np.int64)
    all_syncs = syncs(trace)
    charged_ns = np.minimum(all_syncs.cost, blocked_on_record(trace) - _already_charged(trace, all_syncs))
    charged_ns = np.maximum(charged_ns, 0)
    until = advance(activity(trace).when(*HOST_CAUSED), all_syncs.since, charged_ns)
    order = np.lexsort((np.arange(len(all_syncs)), all_syncs.since))
    parts, owners = earliest_owner(all_syncs.since[order], until[order])
    return parts, order[owners]


def _already_charged(trace: Trace, all_syncs: Syncs) -> NDArray[np.int64]:
    """int64[S] ns charged to each sync before the idle time that it causes: its copy, and the wait for it.

    Without the sync the host would be ahead by the time that it blocked, and no more.
    """
    done, copies = activity(trace), blocking_calls(trace).copy
    sync_of_work = np.full(len(device_work(trace)), -1)
    sync_of_work[copies[copies >= 0]] = np.flatnonzero(copies >= 0)
    sync = np.where(done.category == TimeCategory.EXPOSED_MEMCPY, sync_of_work[done.owner], done.call)
    selected = np.flatnonzero(sync >= 0)
    start = done.parts[selected, 0]
    is_before = (start >= all_syncs.start[sync[selected]]) & (start < all_syncs.since[sync[selected]])
    selected = selected[is_before]
    waited = np.zeros(len(all_syncs), np.int64)
    np.add.at(waited, sync[selected], done.ns[selected])
    return waited


def _host_accounts(trace: Trace, all_actors: Actors) -> tuple[dict[int, Spans], dict[int, NDArray[np.int64]]]:
    """Return the ops of each thread that are actors by track: (spans, the actor of the innermost one in each)."""
    rows = all_actors.op_rows
    row_track = tracks(trace)[rows]
    parts, ops = {}, {}
    for track in sorted_unique(row_track).tolist():
        of_thread = nest(trace.events, rows[row_track == track])
        cuts = sorted_unique(of_thread.start, of_thread.end)
        innermost = of_thread.innermost_at(cuts[:-1])
        parts[track] = np.column_stack([cuts[:-1], cuts[1:]])[innermost >= 0]
        ops[track] = all_actors.first_op + np.searchsorted(rows, of_thread.rows[innermost[innermost >= 0]])
    return parts, ops


def _host_actor(
    trace: Trace,
    parts: dict[int, Spans],
    actors_of: dict[int, NDArray[np.int64]],
    start_ns: NDArray[np.int64],
    owner: Numbers,
    otherwise: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the actor on the thread that launches the next work, else the main thread's; `otherwise` if in neither."""
    work = device_work(trace)
    actor = otherwise.copy()
    launching = np.where(owner >= 0, tracks(trace)[work.call[owner]] if len(work) else -1, main_track(trace))
    for thread in (np.full(len(start_ns), main_track(trace)), launching):
        for track, track_parts in parts.items():
            selected = np.flatnonzero(thread == track)
            inside = span_index(track_parts, start_ns[selected])
            actor[selected[inside >= 0]] = actors_of[track][inside[inside >= 0]]
    return actor


def _called(trace: Trace) -> set[str]:
    """Return the names of the ops, of those inside others as well."""
    events = trace.events
    return {events.strings[name] for name in events.names_among(events.rows(Category.CPU_OP)).tolist()}


def _with_python_between(
    trace: Trace, parts: Spans, actor: NDArray[np.int64], called: Collection[str]
) -> NDArray[np.int64]:
    """Return the actors, that of Python without a line between ops of the main thread not among those `called`: the op.

    That before the first and after the last of them would be there without them, too. What Python launches itself, as a
    kernel of Triton, is no op.
    """
    events, all_actors = trace.events, actors(trace)
    rows, is_op = all_actors.op_rows, events.category[all_actors.op_rows] == Category.CPU_OP
    of_main = np.flatnonzero(is_op & (tracks(trace)[rows] == main_track(trace)))
    of_main = of_main[np.argsort(events.end[rows[of_main]], kind="stable")]
    rows = rows[of_main]
    is_alone = np.array([name not in called for name in events.strings], np.bool_)[events.name[rows]]
    is_between = np.r_[False, is_alone[:-1] & is_alone[1:], False]  # by the number of ops before
    python = np.flatnonzero((actor >= all_actors.first_place) & (all_actors.line[actor] == 0))
    num_before = np.searchsorted(events.end[rows], parts[python, 0], "right")
    python, num_before = python[is_between[num_before]], num_before[is_between[num_before]]
    charged = actor.copy()
    charged[python] = all_actors.first_op + of_main[num_before - 1]
    return charged


def _open_collective(trace: Trace, all_actors: Actors, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the actor of the collective call that is open at each time, on any thread, else of a barrier."""
    rows = collective_calls(trace).rows
    calls = nest(trace.events, rows)
    index = calls.innermost_at(time_ns)
    order = np.argsort(rows, kind="stable")
    call = np.r_[order[np.searchsorted(rows[order], calls.rows)], -1]
    without_call = np.where(contains(barriers(trace), time_ns), all_actors.barrier, all_actors.python)
    return np.where(index >= 0, all_actors.first_call + call[index], without_call)


def _copies_to_syncs(trace: Trace, all_actors: Actors, actor: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the actors with each copy that a sync waits for replaced by the sync."""
    if len(device_work(trace)) == 0:
        return actor
    copies = blocking_calls(trace).copy
    moved, waited = np.arange(len(all_actors.kind)), np.flatnonzero(copies >= 0)
    moved[copies[waited]] = all_actors.first_sync + waited
    return moved[actor]


def _accounts(
    trace: Trace,
    phase: NDArray[np.int32],
    actor: NDArray[np.int64],
    parts: Spans,
    step: NDArray[np.int64],
    is_python: NDArray[np.bool_],
) -> Accounts:
    """Return time and number of every cause, given the parts of counted steps; of ops some parts are Python's.

    All time of a cause counts in the phase of the cause, also the idle time of a sync that lasts into the next phase.
    """
    all_actors, names = actors(trace), phases(trace).names
    step_of = _counted_step(trace, all_actors)
    events = np.flatnonzero(all_actors.happens & (step_of >= 0))
    members = np.r_[actor, events]
    groups = _account_groups(all_actors, members, actor, phase)
    ids, of_events = np.split(groups.group_ids, [len(actor)])
    ns, num, moved = np.zeros((3, len(groups.keys), int(steps(trace).counted.sum())), np.int64)
    part_ns = parts[:, 1] - parts[:, 0]
    np.add.at(ns, (ids, step), part_ns)
    np.add.at(num, (of_events, step_of[events]), 1)
    np.add.at(moved, (of_events, step_of[events]), all_actors.bytes[events])
    account_of = np.full(len(all_actors.kind), -1)
    account_of[members] = groups.group_ids
    inner = _op_self_times(trace, all_actors, parts, actor, account_of)
    between = group([ids[is_python]])
    for (number,), python_ns in zip(between.keys.tolist(), between.sum(part_ns[is_python]), strict=True):
        inner.setdefault(number, {})[PYTHON] = python_ns
    lines = _account_lines(all_actors, members, groups, np.r_[part_ns, np.zeros(len(events), np.int64)])
    keys = zip(groups.keys.tolist(), lines, strict=True)
    labels = (label_of(all_actors, names, kind, name, p, line, module) for (kind, p, name, _, module), line in keys)
    return Accounts(tuple(labels), ns, num, moved, tuple(inner.get(number, {}) for number in range(len(ns))))


def _account_groups(
    all_actors: Actors, members: NDArray[np.int64], actor: NDArray[np.int64], phase: NDArray[np.int32]
) -> Groups:
    """Return `members` grouped by account: kind, phase, name, function of the line, module."""
    phase_of = all_actors.phase[members]
    phase_of[: len(actor)] = np.where(actor < all_actors.latency, phase_of[: len(actor)], phase)
    functions: dict[str, int] = {}
    function_of = np.array(
        [functions.setdefault(line_function(text), len(functions)) for text in all_actors.texts], np.int64
    )
    columns = (
        all_actors.kind[members],
        phase_of,
        all_actors.name[members],
        function_of[all_actors.line[members]],
        all_actors.module[members],
    )
    return group(columns)


def _account_lines(all_actors: Actors, members: NDArray[np.int64], groups: Groups, ns: NDArray[np.int64]) -> list[int]:
    """Return a text per account: of Python that of the line in its function with the most time, else of the first."""
    of_line = group([groups.group_ids, all_actors.line[members]])
    order = np.lexsort((of_line.totals(ns), of_line.keys[:, 0]))
    last = np.flatnonzero(np.diff(of_line.keys[order, 0], append=-1))
    is_python = members[groups.first] >= all_actors.first_place
    lines: list[int] = np.where(
        is_python, of_line.keys[order[last], 1], all_actors.line[members[groups.first]]
    ).tolist()
    return lines


def _counted_step(trace: Trace, all_actors: Actors) -> NDArray[np.int64]:
    """int64[A]: the counted step in whose window device work starts, or in whose host step all else does; else -1."""
    all_steps = steps(trace)
    window = span_index(all_steps.window[all_steps.counted], all_actors.start)
    host = span_index(all_steps.host[all_steps.counted], all_actors.start)
    on_device = np.arange(len(window)) < all_actors.first_sync
    return np.where(on_device, window, host)


def _op_self_times(
    trace: Trace, all_actors: Actors, parts: Spans, actor: NDArray[np.int64], account: NDArray[np.int64]
) -> dict[int, dict[str, int]]:
    """Return the time of each account by innermost op, as far as ops enclose each other.

    `actor` int64[M] is the actor of each of the M parts; `account` int64[A] the account of each actor, -1 for none.
    """
    op_track = tracks(trace)[all_actors.op_rows]
    is_op = (actor >= all_actors.first_op) & (actor < all_actors.first_call)
    times: dict[int, dict[str, int]] = {}
    for track, ops in host_ops(trace).items():
        selected = np.flatnonzero(is_op)[op_track[actor[is_op] - all_actors.first_op] == track]
        charged = spans(parts[selected, 0], parts[selected, 1])
        self_ns = measure_within(charged, ops.start, ops.end)
        inner = np.flatnonzero(ops.parent >= 0)
        np.subtract.at(self_ns, ops.parent[inner], self_ns[inner])
        top = np.searchsorted(all_actors.op_rows, ops.rows[outermost_ops(trace, ops)])
        op_account = account[all_actors.first_op + top]
        sums = group([op_account, trace.events.name[ops.rows]])
        for (number, name), ns in zip(sums.keys.tolist(), sums.sum(self_ns), strict=True):
            if number >= 0 and ns:
                of_account, text = times.setdefault(number, {}), trace.events.strings[name]
                of_account[text] = of_account.get(text, 0) + ns
    return times
