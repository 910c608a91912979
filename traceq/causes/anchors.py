"""Anchors of one rank: the instants at which its host launches, begins and ends a wait, and marks a step."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.causes.holds import HoldKind, HostHolds, holds
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_loads import kernel_loading_calls
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.active_thread import HandOvers, ThreadChains, chain_of, hand_overs
from traceq.facts.timeline.steps import extent, steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace


class AnchorKind(IntEnum):
    """Kind of an anchor."""

    START = 0
    HOLD_END = 1
    STEP_END = 2
    LAUNCH = 3
    HOLD_BEGIN = 4
    STEP_BEGIN = 5
    END = 6


@frozen(eq=False)
class Anchors:
    """N anchors of one rank by time, and the holds they belong to.

    `chains` are the threads of each chain of host work, `chain` int64[N] the chain of an anchor; each starts with one.
    `time_ns` int64[N]; `kind` int8[N] of AnchorKind; `ref` int64[N]: row of the launching call, hold, step or chain;
    `launch` int64[D]: the anchor with which each piece of device work enters the graph, -1 for work from before the
    window. The holds at which a chain waits for another one are the last; `giver` int64[] is the last anchor before
    their end of the chain that each waits for.
    """

    trace: Trace
    chains: ThreadChains
    time_ns: NDArray[np.int64]
    kind: NDArray[np.int8]
    ref: NDArray[np.int64]
    chain: NDArray[np.int64]
    holds: HostHolds
    launch: NDArray[np.int64]
    giver: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def by_chain(self) -> NDArray[np.int64]:
        """int64[N]: the anchors chain by chain."""
        return np.argsort(self.chain, kind="stable")

    @property
    def hold_begins(self) -> NDArray[np.int64]:
        """int64[H]: the anchor at which each hold begins."""
        return self._of_holds(AnchorKind.HOLD_BEGIN)

    @property
    def hold_ends(self) -> NDArray[np.int64]:
        """int64[H]: the anchor at which each hold ends."""
        return self._of_holds(AnchorKind.HOLD_END)

    def _of_holds(self, kind: AnchorKind) -> NDArray[np.int64]:
        chosen = np.flatnonzero(self.kind == kind)
        anchor = np.empty(len(self.holds), np.int64)
        anchor[self.ref[chosen]] = chosen
        return anchor


def anchors(trace: Trace, queue_length: int, chains: ThreadChains, *, for_replay: bool = False) -> Anchors:
    """Return the anchors of a trace, given the length of the launch queue, 0 if it never fills; see `holds`.

    `chains` are its threads, as of `thread_chains`.
    """
    work, all_steps = device_work(trace), steps(trace)
    handed = hand_overs(trace, chains)
    all_holds = _with_hand_overs(holds(trace, queue_length, for_replay=for_replay), handed)
    calls = sorted_unique(work.call[work.linked])
    first, last = _ends(trace)
    hold, step = np.arange(len(all_holds)), np.arange(len(all_steps)) if all_steps.marked else np.empty(0, np.int64)
    sections = (
        (AnchorKind.START, np.full(len(chains), first), np.arange(len(chains))),
        (AnchorKind.LAUNCH, _launched(trace, calls), calls),
        (AnchorKind.HOLD_BEGIN, all_holds.start, hold),
        (AnchorKind.HOLD_END, all_holds.end, hold),
        (AnchorKind.STEP_BEGIN, all_steps.host[step, 0], step),
        (AnchorKind.STEP_END, all_steps.host[step, 1], step),
        (AnchorKind.END, np.array([last]), np.zeros(1, np.int64)),
    )
    time_ns = np.clip(np.concatenate([section[1] for section in sections]), first, None)
    kind = np.concatenate([np.full(len(section[1]), section[0], np.int8) for section in sections])
    ref = np.concatenate([section[2] for section in sections])
    order = np.lexsort((ref, kind, time_ns))
    time_ns, kind, ref = time_ns[order], kind[order], ref[order]
    chain = _chains_of_anchors(trace, chains, kind, ref, all_holds, handed)
    giver = np.empty(len(handed), np.int64)
    for number in sorted_unique(handed.giver).tolist():
        given, of_giver = np.flatnonzero(handed.giver == number), np.flatnonzero(chain == number)
        giver[given] = of_giver[np.searchsorted(time_ns[of_giver], handed.end[given], "right") - 1]
    launch = _launch_anchors(trace, kind, ref)
    return Anchors(trace, chains, time_ns, kind, ref, chain, all_holds, launch, giver)


def _with_hand_overs(all_holds: HostHolds, handed: HandOvers) -> HostHolds:
    """Return the holds with those at which a chain of threads waits for another one."""
    none = np.full(len(handed), -1)
    return replace(
        all_holds,
        kind=np.r_[all_holds.kind, np.full(len(handed), int(HoldKind.THREAD))],
        start=np.r_[all_holds.start, handed.start],
        end=np.r_[all_holds.end, handed.end],
        row=np.r_[all_holds.row, none],
        call=np.r_[all_holds.call, none],
    )


def _chains_of_anchors(
    trace: Trace,
    chains: ThreadChains,
    kind: NDArray[np.int64],
    ref: NDArray[np.int64],
    all_holds: HostHolds,
    handed: HandOvers,
) -> NDArray[np.int64]:
    """Return int64[N]: the chain of each anchor; steps, and what other threads do, are on the first."""
    chain = np.zeros(len(kind), np.int64)
    if len(chains) == 1:
        return chain
    row_track = tracks(trace)
    of_hold = np.where(all_holds.row >= 0, chain_of(row_track[all_holds.row], chains), 0)
    of_hold[len(of_hold) - len(handed) :] = handed.chain
    chain[kind == AnchorKind.START] = ref[kind == AnchorKind.START]
    is_launch, is_hold = kind == AnchorKind.LAUNCH, (kind == AnchorKind.HOLD_BEGIN) | (kind == AnchorKind.HOLD_END)
    chain[is_launch] = chain_of(row_track[ref[is_launch]], chains)
    chain[is_hold] = of_hold[ref[is_hold]]
    return chain


def _launched(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K] ns at which calls launch: at their start, or once they have loaded the kernel."""
    events = trace.events
    return np.where(np.isin(calls, kernel_loading_calls(trace)), events.end[calls], events.ts[calls])


def _ends(trace: Trace) -> tuple[int, int]:
    """Return (first, last) ns of the host."""
    events, (first, last) = trace.events, extent(trace)
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON)
    return first, max(first, min(int(events.end[rows].max(initial=first)), last))


def _launch_anchors(trace: Trace, kind: NDArray[np.int64], ref: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[D]: the anchor of each work's call; without a call that of the work before it on its stream.

    Work that a later session of the profiler found in flight enters with the end of the last step before the session.
    """
    work, all_steps = device_work(trace), steps(trace)
    anchors = np.flatnonzero(kind == AnchorKind.LAUNCH)
    anchors = anchors[np.argsort(ref[anchors], kind="stable")]
    launch = np.full(len(work), -1)
    launch[work.linked] = anchors[np.searchsorted(ref[anchors], work.call[work.linked])]
    for number in sorted_unique(work.stream).tolist():
        on_stream = np.flatnonzero(work.stream == number)
        latest = np.maximum.accumulate(np.where(work.linked[on_stream], np.arange(len(on_stream)), -1))
        follows = ~work.linked[on_stream] & (latest >= 0)
        launch[on_stream[follows]] = launch[on_stream[latest[follows]]]
    ended = np.flatnonzero(all_steps.begins_session)[1:] - 1
    session = np.searchsorted(all_steps.host[ended, 1], work.start, "right")
    in_flight = np.flatnonzero(work.before_window & (session > 0))
    ends = np.flatnonzero(kind == AnchorKind.STEP_END)
    ends = ends[np.argsort(ref[ends], kind="stable")]
    launch[in_flight] = ends[ended[session[in_flight] - 1]]
    return launch
