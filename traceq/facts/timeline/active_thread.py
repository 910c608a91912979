"""The threads of the host as one timeline: which one is at work at each time, and which of them launch side by side."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import Spans, complement, empty, sorted_unique, spans
from traceq.model import Category, Trace

_MOST_THREADS = 128
"""Threads that are followed at once, more than any program launches from: each one is looked at for every instant."""


@frozen(eq=False)
class ActiveThread:
    """Active thread and its innermost op at K instants.

    `time_ns` int64[K]; `track` int64[K], the active thread; `op` int32[K] into the nest of its ops (host_ops), -1
    outside all ops.
    """

    time_ns: NDArray[np.int64]
    track: NDArray[np.int64]
    op: NDArray[np.int32]

    def take(self, index: NDArray[np.int64]) -> ActiveThread:
        """Return the same at some of the instants."""
        return ActiveThread(self.time_ns[index], self.track[index], self.op[index])

    def assign(self, trace: Trace, track: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        """Make the threads `track`, int64[K], the active ones at the instants `index`, where they are in an op."""
        for ops, chosen in host_ops(trace).on(track[index]):
            which = index[chosen]
            op = ops.innermost_at(self.time_ns[which])
            in_op = np.flatnonzero(op >= 0)
            self.track[which[in_op]] = track[which[in_op]]
            self.op[which[in_op]] = op[in_op]


@once_per_trace
def launching_threads(trace: Trace) -> tuple[int, ...]:
    """Return the tracks of the main thread and of the others that launch, of those the 128 that launch most."""
    main, work = main_track(trace), device_work(trace)
    launches = tracks(trace)[work.call[work.linked]]
    launches = launches[launches != main]
    launching = sorted_unique(launches)
    if len(launching) > _MOST_THREADS:
        most_first = np.argsort(-np.bincount(np.searchsorted(launching, launches)), kind="stable")
        launching = np.sort(launching[most_first[:_MOST_THREADS]])
    return main, *launching.tolist()


def active_thread(trace: Trace, time_ns: NDArray[np.int64], threads: tuple[int, ...] | None = None) -> ActiveThread:
    """Return the active thread at each time: the first of some or, while that is in no op, another one that is.

    `threads` are those that launch, the main one first, unless others are given.
    """
    leader, *others = threads or launching_threads(trace)
    active = ActiveThread(time_ns, np.full(len(time_ns), leader), _innermost_op(trace, leader, time_ns))
    idle = np.flatnonzero(active.op < 0) if others else time_ns[:0]
    for track in others:
        op = _innermost_op(trace, track, time_ns[idle])
        in_op = np.flatnonzero(op >= 0)
        active.track[idle[in_op]], active.op[idle[in_op]] = track, op[in_op]
    return active


@once_per_trace
def parallel_launches(trace: Trace) -> float:
    """Return the share of launches made by a thread while another one is the active one."""
    work = device_work(trace)
    calls = sorted_unique(work.call[work.linked])
    if len(calls) == 0:
        return 0.0
    return float((active_thread(trace, trace.events.ts[calls]).track != tracks(trace)[calls]).mean())


def _innermost_op(trace: Trace, track: int, time_ns: NDArray[np.int64]) -> NDArray[np.int32]:
    ops = host_ops(trace).get(track)
    return np.full(len(time_ns), -1, np.int32) if ops is None else ops.innermost_at(time_ns).astype(np.int32)


ThreadChains = tuple[tuple[int, ...], ...]
"""Chains of threads: those of one chain take turns, chains run side by side. The main thread's chain is the first."""

_MOST_PARALLEL = 0.05
"""Share of launches made side by side from which threads are no single line, or one line with another thread."""

_SILENT_NS, _AT_ONCE_NS = 100_000, 100_000
"""A chain without any op for so long may wait for another one; a hand-over takes at most so long."""

_NEVER = 2**62
"""End of a silence that no op ends, ns."""


@frozen(eq=False)
class HandOvers:
    """H silences that end as another chain hands over: `chain` int64[H], `start`, `end` int64[H] ns, `giver` int64[H].

    A chain is silent while none of its threads is in an op or a call.
    """

    chain: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    giver: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.chain)


def thread_chains(trace: Trace) -> ThreadChains:
    """Return the chains of launching threads: one, unless 5 % of the launches are made side by side."""
    return _split(trace) if parallel_launches(trace) >= _MOST_PARALLEL else (launching_threads(trace),)


def paired_chains(a: Trace, b: Trace) -> tuple[ThreadChains, ThreadChains]:
    """Return the chains of both sides, in pairs that launch most of the same kernels; an empty one has no counterpart.

    Both sides are split where either one launches side by side. Threads that take turns on one side are one chain on
    the other, too, where they may come to overlap: hand-overs between chains are guessed, their order in one is known.
    """
    if max(map(parallel_launches, (a, b))) < _MOST_PARALLEL:
        return (launching_threads(a),), (launching_threads(b),)
    of_a, of_b = _split(a), _split(b)
    names_a, names_b = _names_of_chains(a, of_a), _names_of_chains(b, of_b)
    of_a, of_b = _in_turns(of_a, names_a, names_b), _in_turns(of_b, names_b, names_a)
    names_a, names_b = _names_of_chains(a, of_a), _names_of_chains(b, of_b)
    alike = {(i, j): (names_a[i] & names_b[j]).total() for i in range(1, len(of_a)) for j in range(1, len(of_b))}
    in_b = {0: 0}
    for i, j in sorted(alike, key=lambda pair: (-alike[pair], pair)):
        if i not in in_b and j not in in_b.values():
            in_b[i] = j
    alone = [of_b[j] for j in range(len(of_b)) if j not in in_b.values()]
    paired = [of_b[in_b[i]] if i in in_b else () for i in range(len(of_a))]
    return (*of_a, *((),) * len(alone)), (*paired, *alone)


def chain_of(track: NDArray[np.int64], chains: ThreadChains) -> NDArray[np.int64]:
    """Return int64[K]: the chain of each track, 0 for threads that launch nothing."""
    chain = np.zeros(len(track), np.int64)
    for number, threads in enumerate(chains[1:], start=1):
        chain[np.isin(track, threads)] = number
    return chain


def active_in_chains(trace: Trace, time_ns: NDArray[np.int64], chain: Numbers, chains: ThreadChains) -> ActiveThread:
    """Return the active thread at each time among those of the chain [K] that is asked for there."""
    active = ActiveThread(time_ns, np.full(len(time_ns), -1), np.full(len(time_ns), -1, np.int32))
    for number, threads in enumerate(chains):
        chosen = np.flatnonzero(chain == number)
        of_chain = active_thread(trace, time_ns[chosen], threads)
        active.track[chosen], active.op[chosen] = of_chain.track, of_chain.op
    return active


def hand_overs(trace: Trace, chains: ThreadChains) -> HandOvers:
    """Return the silences of chains that another one ends. No event names it, so it is told from time.

    A chain that resumes at most 100 us after another one fell silent was waiting for it. A chain other than the main
    one was waiting for work: for the main one, if for none that fell silent.
    """
    silences = [silent_spans(trace, threads) for threads in chains] if len(chains) > 1 else [empty()]
    chain = np.repeat(np.arange(len(chains)), [len(parts) for parts in silences])
    start, end = np.concatenate(silences).T
    latest, giver = np.full(len(chain), np.iinfo(np.int64).min), np.full(len(chain), -1)
    for other, parts in enumerate(silences):
        index = np.searchsorted(parts[:, 0], end, "right") - 1
        fell_silent = np.r_[parts[:, 0], np.iinfo(np.int64).min][index]
        is_later = (chain != other) & (fell_silent > latest) & (fell_silent >= start)
        latest, giver = np.where(is_later, fell_silent, latest), np.where(is_later, other, giver)
    giver = np.where(latest >= end - _AT_ONCE_NS, giver, -1)
    giver = np.where((giver < 0) & (chain > 0), 0, giver)
    chosen = np.flatnonzero((giver >= 0) & (end < _NEVER))
    return HandOvers(chain[chosen], start[chosen], end[chosen], giver[chosen])


@once_per_trace
def _split(trace: Trace) -> ThreadChains:
    """Return the chains: each thread joins the first one beside which it hardly ever launches."""
    events, work, row_track = trace.events, device_work(trace), tracks(trace)
    calls = sorted_unique(work.call[work.linked])
    main, *others = launching_threads(trace)
    launched = {thread: events.ts[calls[row_track[calls] == thread]] for thread in others}
    chains = [[main]]
    for thread in sorted(others, key=lambda thread: (-len(launched[thread]), int(launched[thread].min()))):
        for chain in chains:
            if _beside(trace, chain, launched[thread]) < _MOST_PARALLEL:
                chain.append(thread)
                break
        else:
            chains.append([thread])
    return tuple(map(tuple, chains))


def _beside(trace: Trace, threads: list[int], instants: NDArray[np.int64]) -> float:
    """Return the share of some instants at which one of the threads is in an op."""
    in_op = np.zeros(len(instants), np.bool_)
    for ops in (host_ops(trace)[thread] for thread in threads if thread in host_ops(trace)):
        in_op |= ops.is_open(instants)
    return float(in_op.mean())


def _names_of_chains(trace: Trace, chains: ThreadChains) -> list[Counter[str]]:
    return [_launched_names(trace, threads) for threads in chains]


def _in_turns(chains: ThreadChains, names: list[Counter[str]], names_of_other: list[Counter[str]]) -> ThreadChains:
    """Return the chains, those joined to the first whose kernels the first of the other side launches most of."""
    first, others = list(chains[0]), []
    for threads, launched in zip(chains[1:], names[1:], strict=True):
        in_first, *in_others = ((launched & of_other).total() for of_other in names_of_other)
        if in_first > max(in_others, default=0):
            first += threads
        else:
            others.append(threads)
    return (tuple(first), *others)


def _launched_names(trace: Trace, threads: tuple[int, ...]) -> Counter[str]:
    events, work = trace.events, device_work(trace)
    linked = np.flatnonzero(work.linked)
    linked = linked[np.isin(tracks(trace)[work.call[linked]], threads)]
    names, num = np.unique(events.name[work.rows[linked]], return_counts=True)
    return Counter({events.strings[name]: count for name, count in zip(names.tolist(), num.tolist(), strict=True)})


def silent_spans(trace: Trace, threads: tuple[int, ...]) -> Spans:
    """Return when none of the threads is in an op or a call for 100 us, or ever again: until `_NEVER`."""
    events, row_track = trace.events, tracks(trace)
    rows = events.rows(Category.CPU_OP, Category.RUNTIME)
    if len(rows) == 0:
        return empty()
    first = int(events.ts[rows].min())
    rows = rows[np.isin(row_track[rows], threads)]
    silent = complement(spans(events.ts[rows], events.end[rows]), first, _NEVER)
    return silent[silent[:, 1] - silent[:, 0] >= _SILENT_NS]
