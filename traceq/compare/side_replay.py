"""What one side alone says about a change: its step by replay, without the syncs that the other does not have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.causes.replay import replay_of
from traceq.compare.result import SideReplay
from traceq.facts.events.device_work import lacks_host_ops
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace

__all__ = ["side_replays"]


def side_replays(a: Trace, b: Trace) -> tuple[SideReplay, SideReplay]:
    """Return the replay of either side without its one-sided syncs, and with a host that takes no time."""
    kinds_a, of_a = _kinds(a)
    kinds_b, of_b = _kinds(b)
    one_sided = (a, _is_missing(kinds_a, kinds_b)[of_a]), (b, _is_missing(kinds_b, kinds_a)[of_b])
    replay_a, replay_b = (_replayed(trace, is_missing) for trace, is_missing in one_sided)
    if not (lacks_host_ops(a) or lacks_host_ops(b)):
        return replay_a, replay_b
    return replace(replay_a, host_ns=None, host_most_ns=None), replace(replay_b, host_ns=None, host_most_ns=None)


def _kinds(trace: Trace) -> tuple[list[tuple[str, str, str]], NDArray[np.int64]]:
    """Return (kind, op or call, and phase of the syncs of a trace, int64[S] which of them each is)."""
    waits, names, events = syncs(trace), phases(trace).names, trace.events
    texts = waits.origin.texts
    groups = group(
        [waits.kind, waits.origin.op, np.where(waits.origin.op > 0, -1, events.name[waits.rows]), waits.phase]
    )
    kinds = [
        (SYNC_KINDS[kind], texts[op] or events.strings[name], names[phase])
        for kind, op, name, phase in groups.keys.tolist()
    ]
    return kinds, groups.group_ids


def _is_missing(kinds: list[tuple[str, str, str]], elsewhere: list[tuple[str, str, str]]) -> NDArray[np.bool_]:
    return np.array([kind not in elsewhere for kind in kinds], np.bool_)


def _replayed(trace: Trace, is_one_sided: NDArray[np.bool_]) -> SideReplay:
    """Return the replay of a trace without some of its syncs, bool[S]."""
    replay, waits = replay_of(trace), host_waits(trace)
    counted = steps(trace).host[steps(trace).counted]
    inside = span_index(counted, syncs(trace).start) >= 0
    removed = np.r_[is_one_sided, False][waits.call][None]
    (of_syncs,), of_host = replay.saved_per_step(removed, everywhere=True), replay.without_host_time
    return SideReplay(
        num_syncs=int((is_one_sided & inside).sum()) / len(counted),
        syncs_ns=of_syncs.least_ns,
        syncs_most_ns=of_syncs.most_ns,
        host_ns=of_host.least_ns,
        host_most_ns=of_host.most_ns,
    )
