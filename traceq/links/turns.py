"""The host as one line: which of its threads is at work at an instant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.intervals import distinct
from traceq.links.launches import device_work
from traceq.links.nesting import host_ops, tracks
from traceq.links.steps import main_track
from traceq.model import Trace

__all__ = ["in_an_op", "whose_turn"]


def whose_turn(trace: Trace, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[K]: the thread at work at each instant: the main one or, while only that is in an op, one that launches."""
    own, work = main_track(trace), device_work(trace)
    track = np.full(len(at), own)
    if len(work) == 0:
        return track
    free = ~in_an_op(trace, own, at)
    for number in distinct(tracks(trace)[work.call[work.linked]]).tolist():
        if number != own:
            mine = np.flatnonzero(free)
            track[mine[in_an_op(trace, number, at[mine])]] = number
    return track


def in_an_op(trace: Trace, track: int, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[K]: an op of the thread is open."""
    ops = host_ops(trace).get(track)
    return ops.is_open(at) if ops is not None else np.zeros(len(at), np.bool_)
