"""How much shorter is a step without some of the host's waits?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.replay import Saving, replay_of
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.model import Trace

__all__ = ["LOADER", "kinds_of_waits", "saved_without_loader", "saved_without_syncs"]

LOADER = -1
"""Kind of a wait for the data loader."""


def kinds_of_waits(trace: Trace) -> NDArray[np.int64]:
    """Return int64[H]: index into SYNC_KINDS of each host wait, or LOADER."""
    calls, waits = blocking_calls(trace), host_waits(trace)
    return np.where(waits.call >= 0, calls.kind[waits.call] if len(calls) else LOADER, LOADER)


def saved_without_syncs(trace: Trace, *kinds: int) -> Saving:
    """Return by how much replay shortens the mean counted step without all syncs of some kinds; of any without `kinds`.

    It is the `saved_ns` of the row of the table `replay` that removes them.
    """
    of_wait = kinds_of_waits(trace)
    return _saved(trace, np.isin(of_wait, kinds) if kinds else of_wait != LOADER)


def saved_without_loader(trace: Trace) -> Saving:
    """Return by how much replay shortens the mean counted step without its waits for the data loader."""
    return _saved(trace, kinds_of_waits(trace) == LOADER)


def _saved(trace: Trace, removed: NDArray[np.bool_]) -> Saving:
    return replay_of(trace).saved_per_step(removed[None])[0]
