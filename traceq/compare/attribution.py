"""Charge every nanosecond of a trace's steps to one cause: what one side of a diff spends its time on.

Busy time is charged to the work that runs; idle time to the sync that starves the device, else to what the host did
instead of launching the next piece of work: `data loader`, or `start of the loader's workers`, where it is in that, in
no op and at no known line. Accounts add up to the cells of the partition, and cells to the steps.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from traceq.compare.cost_centers import CAUSE_KINDS, Actors, actors
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
from traceq.facts.timeline.python_places import python_places
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import BUSY, HOST_CAUSED, TimeCategory, activity, ns_by_phase
from traceq.frozen import frozen
from traceq.grouping import Groups, Numbers, group
from traceq.intervals import Spans, advance, contains, earliest_owner, measure_within, sorted_unique, span_index, spans
from traceq.model import Trace


@frozen
class Account:
    """Time of one cause over all counted steps.

    `key` is the same on both sides of a diff. `num` counts kernels, copies or calls, `bytes` is what they moved. Of a
    sync, `copied` ns are its copy and `waited` ns the blocking call while nothing ran. `inner` splits the time of a
    host op by the innermost op; `by_step` and `num_by_step`, int64[steps], are `ns` and `num` by counted step.
    """

    key: str
    kind: str
    phase: str
    name: str
    line: str
    module: str
    num: int
    ns: int
    bytes: int = 0
    copied: int = 0
    waited: int = 0
    inner: tuple[_OpSelfTime, ...] = ()
    by_step: tuple[int, ...] = ()
    num_by_step: tuple[int, ...] = ()


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


@frozen
class Ledger(StepTime):
    """Accounts of one side, which add up to `total_ns`, too."""

    accounts: tuple[Account, ...]


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


def lone_copies(trace: Trace) -> frozenset[str]:
    """Return the names of actors that are copies for which no sync waits."""
    all_actors = actors(trace)
    work = slice(0, all_actors.first_sync)
    is_copy = (all_actors.kind[work] == CAUSE_KINDS.index("memcpy")) & all_actors.happens[work]
    return frozenset(all_actors.texts[name] for name in sorted_unique(all_actors.name[work][is_copy]).tolist())


def ledger(trace: Trace, apart: Collection[str] = ()) -> Ledger:
    """Return cells and accounts of a trace's counted steps; copies named in `apart` are no part of their syncs.

    Where one side of a diff makes a copy without a sync, the other makes it, too, though its host waits.
    """
    time = step_time(trace)
    parts, category, phase, actor = attributed_parts(trace, apart)
    step = span_index(steps(trace).window[steps(trace).counted], parts[:, 0])
    inside = step >= 0
    accounts = _accounts(trace, phase[inside], actor[inside], parts[inside], category[inside], step[inside], apart)
    return Ledger(time.rank, time.num_steps, time.total_ns, time.cells, accounts)


def whole_mean(total: int, num: int) -> int:
    """Return the mean, rounded to an integer."""
    return (total + num // 2) // num


def attributed_parts(
    trace: Trace, apart: Collection[str] = ()
) -> tuple[Spans, NDArray[np.int8], NDArray[np.int32], NDArray[np.int64]]:
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
    actor = _copies_to_syncs(trace, all_actors, actor, apart)
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


def _open_collective(trace: Trace, all_actors: Actors, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the actor of the collective call that is open at each time, on any thread, else of a barrier."""
    rows = collective_calls(trace).rows
    calls = nest(trace.events, rows)
    index = calls.innermost_at(time_ns)
    order = np.argsort(rows, kind="stable")
    call = np.r_[order[np.searchsorted(rows[order], calls.rows)], -1]
    without_call = np.where(contains(barriers(trace), time_ns), all_actors.barrier, all_actors.python)
    return np.where(index >= 0, all_actors.first_call + call[index], without_call)


def _copies_to_syncs(
    trace: Trace, all_actors: Actors, actor: NDArray[np.int64], apart: Collection[str]
) -> NDArray[np.int64]:
    """Return the actors with each copy that a sync waits for, but those `apart`, replaced by the sync."""
    if len(device_work(trace)) == 0:
        return actor
    copies = blocking_calls(trace).copy
    moved = np.arange(len(all_actors.kind))
    waited = np.flatnonzero((copies >= 0) & ~_copies_apart(trace, all_actors, apart))
    moved[copies[waited]] = all_actors.first_sync + waited
    return moved[actor]


def _copies_apart(trace: Trace, all_actors: Actors, apart: Collection[str]) -> NDArray[np.bool_]:
    """Return which blocking calls wait for a copy that is `apart`: bool[S]."""
    copies = blocking_calls(trace).copy
    named = np.array([text in apart for text in all_actors.texts], np.bool_)
    return np.asarray((copies >= 0) & named[all_actors.name[copies]])


def _accounts(
    trace: Trace,
    phase: NDArray[np.int32],
    actor: NDArray[np.int64],
    parts: Spans,
    category: NDArray[np.int8],
    step: NDArray[np.int64],
    apart: Collection[str],
) -> tuple[Account, ...]:
    """Return time and number of every cause; one hidden behind others has 0 ns.

    All time of a cause counts in the phase of the cause, also the idle time of a sync that lasts into the next phase.
    """
    all_actors, names = actors(trace), phases(trace).names
    step_of = _counted_step(trace, all_actors)
    happens, size = all_actors.happens.copy(), all_actors.bytes.copy()
    if apart:
        of_call = np.flatnonzero(_copies_apart(trace, all_actors, apart))
        happens[blocking_calls(trace).copy[of_call]] = True
        size[all_actors.first_sync + of_call] = 0
    events = np.flatnonzero(happens & (step_of >= 0))
    members = np.r_[actor, events]
    groups, functions = _account_groups(all_actors, members, actor, phase)
    zeros = np.zeros(len(events), np.int64)
    ns = parts[:, 1] - parts[:, 0]
    is_wait = np.isin(category, (TimeCategory.SYNC_WAIT, TimeCategory.ALLOC_WAIT))
    totals = groups.sum(np.r_[ns, zeros])
    copied = groups.sum(np.r_[np.where(category == TimeCategory.EXPOSED_MEMCPY, ns, 0), zeros])
    waited = groups.sum(np.r_[np.where(is_wait, ns, 0), zeros])
    moved = groups.sum(np.r_[np.zeros(len(actor), np.int64), size[events]])
    account_of = np.full(len(all_actors.kind), -1)
    account_of[members] = groups.group_ids
    by_step = np.zeros((len(totals), int(steps(trace).counted.sum())), np.int64)
    num_by_step = np.zeros_like(by_step)
    np.add.at(by_step, (groups.group_ids[: len(actor)], step), ns)
    np.add.at(num_by_step, (groups.group_ids[len(actor) :], step_of[events]), 1)
    inner = _op_self_times(trace, all_actors, parts, actor, account_of)
    line = _account_lines(all_actors, members, groups, np.r_[ns, zeros])
    accounts = []
    for number, (kind, p, text, function, module) in enumerate(groups.keys.tolist()):
        words = CAUSE_KINDS[kind], names[p], all_actors.texts[text]
        within = all_actors.texts[module]
        accounts.append(
            Account(
                "|".join((*words, functions[function], *([within] if within else []))),
                *words,
                line=all_actors.texts[line[number]],
                module=within,
                num=int(num_by_step[number].sum()),
                ns=totals[number],
                bytes=moved[number],
                copied=copied[number],
                waited=waited[number],
                inner=inner.get(number, ()),
                by_step=tuple(by_step[number].tolist()),
                num_by_step=tuple(num_by_step[number].tolist()),
            )
        )
    return tuple(accounts)


def _account_groups(
    all_actors: Actors, members: NDArray[np.int64], actor: NDArray[np.int64], phase: NDArray[np.int32]
) -> tuple[Groups, list[str]]:
    """Return (`members` grouped by account; the functions that the keys' fourth column indexes)."""
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
    return group(columns), list(functions)


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


@frozen
class _OpSelfTime:
    """Self time `ns` of the ops of one name."""

    name: str
    ns: int


def _op_self_times(
    trace: Trace, all_actors: Actors, parts: Spans, actor: NDArray[np.int64], account: NDArray[np.int64]
) -> dict[int, tuple[_OpSelfTime, ...]]:
    """Return the time of each account by innermost op, as far as ops enclose each other.

    `actor` int64[M] is the actor of each of the M parts; `account` int64[A] the account of each actor, -1 for none.
    """
    op_track = tracks(trace)[all_actors.op_rows]
    is_op = (actor >= all_actors.first_op) & (actor < all_actors.first_call)
    times: dict[int, list[_OpSelfTime]] = {}
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
                times.setdefault(number, []).append(_OpSelfTime(trace.events.strings[name], ns))
    return {number: tuple(of_account) for number, of_account in times.items()}
