"""How much shorter is a step without some of the host's waits?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.replay import Saving, replay_of
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.one_time_syncs import is_around_all_launches
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.modules import modules_at
from traceq.grouping import Groups, group
from traceq.model import Trace

__all__ = [
    "LOADER",
    "alike_syncs",
    "is_of_measurement",
    "kinds_of_waits",
    "saved_without_alike",
    "saved_without_loader",
    "saved_without_syncs",
]

LOADER, _MEASUREMENT = -1, -2
"""Kinds of waits that are no syncs of a step: for the data loader, and those of a measurement."""


@once_per_trace
def kinds_of_waits(trace: Trace) -> NDArray[np.int64]:
    """Return int64[H]: index into SYNC_KINDS of each host wait that a job could do without; negative for others."""
    calls, call = blocking_calls(trace), host_waits(trace).call
    if not len(calls):
        return np.full(len(call), LOADER)
    kind = np.where(is_of_measurement(trace)[alike_syncs(trace).group_ids], _MEASUREMENT, calls.kind)
    return np.where(call >= 0, kind[call], LOADER)


@once_per_trace
def is_of_measurement(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[G]: rows of syncs that only surround the launches of the trace; no step of a job has them."""
    groups = alike_syncs(trace)
    return np.equal(groups.sum(~is_around_all_launches(trace)), 0)


def saved_without_syncs(trace: Trace, *kinds: int) -> Saving:
    """Return by how much replay shortens the mean counted step without all syncs of some kinds; of any without `kinds`.

    It is the `saved_ns` of the row of the table `replay` that removes them.
    """
    of_wait = kinds_of_waits(trace)
    return _saved(trace, np.isin(of_wait, kinds) if kinds else of_wait >= 0)


@once_per_trace
def alike_syncs(trace: Trace) -> Groups:
    """Return the syncs by (kind, op, line, module, phase): a group for each row of the table `syncs`."""
    waits = syncs(trace)
    module = modules_at(trace, tracks(trace)[waits.rows], waits.start + waits.blocked // 2)
    return group([waits.kind, waits.origin.op, waits.origin.line, module, waits.phase])


@once_per_trace
def saved_without_alike(trace: Trace) -> list[Saving]:
    """Return by how much replay shortens the mean counted step without each group of syncs but with all others."""
    groups, call = alike_syncs(trace), host_waits(trace).call
    removed = np.zeros((len(groups.keys), len(call)), np.bool_)
    blocks = np.flatnonzero(kinds_of_waits(trace) >= 0)
    removed[groups.group_ids[call[blocks]], blocks] = True
    return replay_of(trace).saved_per_step(removed)


def saved_without_loader(trace: Trace) -> Saving:
    """Return by how much replay shortens the mean counted step without its waits for the data loader."""
    return _saved(trace, kinds_of_waits(trace) == LOADER)


def _saved(trace: Trace, removed: NDArray[np.bool_]) -> Saving:
    return replay_of(trace).saved_per_step(removed[None])[0]
