"""Every nanosecond of a trace's steps on the account of one cause: what one side of a diff spends, and on what.

An instant at which something runs goes to what runs; an idle one to the sync that starves the device, else to what the
host was doing instead of launching the next piece of work. Accounts add up to the cells of the partition, and those to
the steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.compare.cost_centers import CAUSE_KINDS, Actors, actors
from traceq.compare.python_places import python_places
from traceq.compare.self_time import OwnTime, own_times
from traceq.facts.comm.collectives import collective_calls
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import nest, tracks
from traceq.facts.stalls.syncs import Syncs, syncs
from traceq.facts.timeline.blocking_calls import blocking_calls
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import HOST_CAUSED, TimeCategory, activity
from traceq.grouping import group
from traceq.intervals import Spans, advance, earliest_owner, span_index
from traceq.model import Trace

__all__ = ["Account", "Ledger", "LedgerCell", "charged", "ledger", "line_function", "whole_mean"]

_LINE = re.compile(r"^(?P<file>[^ :]+):\d+ (?P<function>.+)$")


@dataclass(frozen=True, slots=True)
class Account:
    """Time of one cause over all counted steps. `key` is the same on both sides of a diff; `num` counts what happened:
    kernels, copies, calls; `bytes` what they moved; of a sync `copied` ns went by in its copy and `waited` in the call
    while nothing ran; `inner` says in which ops within a host op the time went by.
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
    inner: tuple[OwnTime, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerCell:
    """Time of one phase and category over all counted steps."""

    phase: str
    category: str
    ns: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """One side: `num_steps` counted steps of `total_ns` together."""

    rank: int
    num_steps: int
    total_ns: int
    cells: tuple[LedgerCell, ...]
    accounts: tuple[Account, ...]


def ledger(trace: Trace) -> Ledger:
    """The counted steps of a trace, closed: cells and accounts each add up to `total_ns`."""
    found = steps(trace)
    windows = found.window[found.counted]
    parts, doing, phase, actor = charged(trace)
    inside = span_index(windows, parts[:, 0]) >= 0
    ns = (parts[:, 1] - parts[:, 0])[inside]
    names = phases(trace).names
    cells = group([phase[inside], doing[inside]])
    return Ledger(
        rank=trace.rank,
        num_steps=len(windows),
        total_ns=int((windows[:, 1] - windows[:, 0]).sum()),
        cells=tuple(
            LedgerCell(names[p], TimeCategory(d).name.lower(), total)
            for (p, d), total in zip(cells.keys.tolist(), cells.sum(ns), strict=True)
        ),
        accounts=_accounts(trace, phase[inside], actor[inside], parts[inside], doing[inside]),
    )


def whole_mean(total: int, num: int) -> int:
    """The mean, rounded to a whole."""
    return (total + num // 2) // num


def line_function(line: str) -> str:
    """`file.py:41 check` as `file.py check`: the same function, whatever line it has moved to."""
    found = _LINE.match(line)
    return f"{found['file']} {found['function']}" if found else line


def charged(trace: Trace) -> tuple[Spans, NDArray[np.int8], NDArray[np.int64], NDArray[np.int64]]:
    """The activity of a trace, cut where an account changes: (parts, doing, phase, actor)."""
    done, all_actors = activity(trace), actors(trace)
    if len(done.parts) == 0:
        return done.parts, done.doing, done.phase, done.phase
    starved, of_sync = _starvation(trace)
    op_parts, ops = _host_accounts(trace, all_actors)
    between = python_places(trace)
    cuts = np.unique(
        np.concatenate([starved.ravel(), *(spans.ravel() for spans in (*op_parts.values(), *between.parts.values()))])
    )
    edges = np.unique(
        np.concatenate([done.parts.ravel(), cuts[(cuts > done.parts[0, 0]) & (cuts < done.parts[-1, 1])]])
    )
    at = edges[:-1]
    piece = np.searchsorted(done.parts[:, 0], at, "right") - 1
    doing, owner, call = done.doing[piece], done.owner[piece], done.call[piece]
    places = {number: all_actors.first_place + place for number, place in between.place.items()}
    host = _open_account(trace, between.parts, places, at, owner, np.full(len(at), all_actors.python))
    host = _open_account(trace, op_parts, ops, at, owner, host)
    starving = span_index(starved, at)
    syncing = np.where(starving >= 0, of_sync[starving] if len(of_sync) else 0, -1)
    actor = host
    actor = np.where(
        np.isin(doing, (TimeCategory.COMPUTE, TimeCategory.EXPOSED_COMM, TimeCategory.EXPOSED_MEMCPY)), owner, actor
    )
    actor = np.where(np.isin(doing, HOST_CAUSED) & (syncing >= 0), all_actors.first_sync + syncing, actor)
    actor = np.where(call >= 0, all_actors.first_sync + call, actor)
    actor = np.where(doing == TimeCategory.LAUNCH_LATENCY, all_actors.latency, actor)
    actor = np.where(doing == TimeCategory.TAIL, all_actors.tail, actor)
    actor = np.where(doing == TimeCategory.DATALOAD_WAIT, all_actors.loader, actor)
    actor = np.where((doing == TimeCategory.EXPOSED_COMM) & (owner < 0), _open_call(trace, all_actors, at), actor)
    return np.column_stack([at, edges[1:]]), doing, done.phase[piece], _copies_to_syncs(trace, all_actors, actor)


def _starvation(trace: Trace) -> tuple[Spans, NDArray[np.int64]]:
    """Instants of which a sync has to answer for, as far as its cost goes: (parts, index of the sync)."""
    if len(device_work(trace)) == 0:
        return np.empty((0, 2), np.int64), np.empty(0, np.int64)
    found = syncs(trace)
    answers_for = np.minimum(found.cost, found.blocked - _already_waited(trace, found))
    until = advance(activity(trace).when(*HOST_CAUSED), found.since, answers_for)
    order = np.lexsort((np.arange(len(found)), found.since))
    parts, owners = earliest_owner(found.since[order], until[order])
    return parts, order[owners]


def _already_waited(trace: Trace, found: Syncs) -> NDArray[np.int64]:
    """int64[S] ns: what stands on the account of each sync before the idle time that it causes: the copy, the wait for
    it. Without the sync the host would be ahead by what it blocked, and no more.
    """
    done, copies = activity(trace), blocking_calls(trace).copy
    of_work = np.full(len(device_work(trace)), -1)
    of_work[copies[copies >= 0]] = np.flatnonzero(copies >= 0)
    sync = np.where(done.doing == TimeCategory.EXPOSED_MEMCPY, of_work[done.owner], done.call)
    mine = np.flatnonzero(sync >= 0)
    at = done.parts[mine, 0]
    mine = mine[(at >= found.start[sync[mine]]) & (at < found.since[sync[mine]])]
    waited = np.zeros(len(found), np.int64)
    np.add.at(waited, sync[mine], done.ns[mine])
    return waited


def _host_accounts(trace: Trace, all_actors: Actors) -> tuple[dict[int, Spans], dict[int, NDArray[np.int64]]]:
    """Outermost ops of each thread: (parts, actors)."""
    rows, of_row = all_actors.op_rows, tracks(trace)[all_actors.op_rows]
    parts, found = {}, {}
    for number in np.unique(of_row).tolist():
        mine = np.flatnonzero(of_row == number)
        mine = mine[np.lexsort((mine, trace.events.ts[rows[mine]]))]
        parts[number], owners = earliest_owner(trace.events.ts[rows[mine]], trace.events.end[rows[mine]])
        found[number] = all_actors.first_op + mine[owners]
    return parts, found


def _open_account(
    trace: Trace,
    parts: dict[int, Spans],
    ops: dict[int, NDArray[np.int64]],
    at: NDArray[np.int64],
    owner: NDArray[np.int64],
    otherwise: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Actor that the host is in: an op or a place of the thread that launches the next work, else of the main one."""
    work = device_work(trace)
    found = otherwise.copy()
    launching = np.where(owner >= 0, tracks(trace)[work.call[owner]] if len(work) else -1, main_track(trace))
    for thread in (np.full(len(at), main_track(trace)), launching):
        for number, spans_of in parts.items():
            mine = np.flatnonzero(thread == number)
            inside = span_index(spans_of, at[mine])
            found[mine[inside >= 0]] = ops[number][inside[inside >= 0]]
    return found


def _open_call(trace: Trace, all_actors: Actors, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Actor of the collective that is under way at each instant, on any thread."""
    rows = collective_calls(trace).rows
    inside = nest(trace.events, rows)
    found = inside.at(at)
    order = np.argsort(rows, kind="stable")
    call = np.r_[order[np.searchsorted(rows[order], inside.rows)], -1]
    return np.where(found >= 0, all_actors.first_call + call[found], all_actors.python)


def _copies_to_syncs(trace: Trace, all_actors: Actors, actor: NDArray[np.int64]) -> NDArray[np.int64]:
    """The copy that a sync waits for is charged to the sync."""
    if len(device_work(trace)) == 0:
        return actor
    copies = blocking_calls(trace).copy
    moved = np.arange(len(all_actors.kind))
    waited = np.flatnonzero(copies >= 0)
    moved[copies[waited]] = all_actors.first_sync + waited
    return moved[actor]


def _accounts(
    trace: Trace, phase: NDArray[np.int64], actor: NDArray[np.int64], parts: Spans, doing: NDArray[np.int8]
) -> tuple[Account, ...]:
    """Time and number of every cause; one that was hidden behind others has 0 ns.

    A cause stands in its own phase with all it costs: the idle time of a sync that lasts into the next phase, too.
    """
    all_actors, names = actors(trace), phases(trace).names
    happened = np.flatnonzero(all_actors.happens & _in_counted_steps(trace, all_actors))
    who = np.r_[actor, happened]
    own = all_actors.phase[who]
    own[: len(actor)] = np.where(actor < all_actors.latency, own[: len(actor)], phase)
    functions: dict[str, int] = {}
    of_text = np.array(
        [functions.setdefault(line_function(text), len(functions)) for text in all_actors.texts], np.int64
    )
    columns = (
        all_actors.kind[who],
        own,
        all_actors.name[who],
        of_text[all_actors.line[who]],
        all_actors.module[who],
    )
    groups = group(columns)
    none = np.zeros(len(happened), np.int64)
    ns = parts[:, 1] - parts[:, 0]
    totals = groups.sum(np.r_[ns, none])
    copied = groups.sum(np.r_[np.where(doing == TimeCategory.EXPOSED_MEMCPY, ns, 0), none])
    waited = groups.sum(np.r_[np.where(np.isin(doing, (TimeCategory.SYNC_WAIT, TimeCategory.ALLOC_WAIT)), ns, 0), none])
    nums = groups.sum(np.arange(len(who)) >= len(actor))
    moved = groups.sum(np.r_[np.zeros(len(actor), np.int64), all_actors.bytes[happened]])
    where = list(functions)
    of_actor = np.full(len(all_actors.kind), -1)
    of_actor[who] = groups.of_row
    inner = own_times(trace, all_actors, parts, actor, of_actor)
    accounts = []
    for number, (kind, p, text, function, module) in enumerate(groups.keys.tolist()):
        words = CAUSE_KINDS[kind], names[p], all_actors.texts[text]
        within = all_actors.texts[module]
        accounts.append(
            Account(
                "|".join((*words, where[function], *([within] if within else []))),
                *words,
                line=all_actors.texts[int(all_actors.line[who[groups.first[number]]])],
                module=within,
                num=nums[number],
                ns=totals[number],
                bytes=moved[number],
                copied=copied[number],
                waited=waited[number],
                inner=inner.get(number, ()),
            )
        )
    return tuple(accounts)


def _in_counted_steps(trace: Trace, all_actors: Actors) -> NDArray[np.bool_]:
    """bool[A]: device work that starts in a counted window, host actors that start in a counted host step."""
    found = steps(trace)
    window = span_index(found.window[found.counted], all_actors.start) >= 0
    host = span_index(found.host[found.counted], all_actors.start) >= 0
    on_device = np.arange(len(window)) < all_actors.first_sync
    return np.where(on_device, window, host)
