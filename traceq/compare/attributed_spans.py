"""Spans of each side that are charged to the causes of a diff."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.compare.attribution import attributed_parts
from traceq.compare.cost_centers import CAUSE_KINDS, LAUNCHES, actors
from traceq.compare.result import AND, Cause
from traceq.facts.timeline.phases import phases
from traceq.frozen import frozen
from traceq.intervals import Spans
from traceq.model import Trace

_NAMED_BY_KERNEL = ("kernel", "memcpy")


@frozen(eq=False)
class Charges:
    """M spans by start: `parts` int64[M, 2] ns, `cause` int64[M] into the causes passed in."""

    parts: Spans
    cause: NDArray[np.int64]


def charges(trace: Trace, causes: Sequence[Cause]) -> Charges:
    """Return the spans charged to these causes; adjacent spans of one cause are merged.

    A cause that stands for several accounts has only the spans of the accounts that share its name. What has no spans:
    the pace of all work, what names no change, and what is on other ranks alone.
    """
    parts, _, phase, actor = attributed_parts(trace)
    all_actors, names = actors(trace), phases(trace).names
    cause_of = np.full(len(parts), -1)
    actor_phase = np.where(actor < all_actors.latency, all_actors.phase[actor], phase)
    for number, cause in enumerate(causes):
        if cause.kind not in CAUSE_KINDS or (cause.ranks and str(trace.rank) not in cause.ranks):
            continue
        is_kernel = cause.kind in _NAMED_BY_KERNEL and LAUNCHES not in cause.work
        texts = [text.rpartition(LAUNCHES)[2] if is_kernel else text for text in all_actors.texts]
        has_name = np.array([text == cause.work for text in texts], np.bool_)
        in_phase = np.array([name == cause.phase or name in cause.phase.split(AND) for name in names], np.bool_)
        is_kind = all_actors.kind[actor] == CAUSE_KINDS.index(cause.kind)
        cause_of[is_kind & has_name[all_actors.name[actor]] & in_phase[actor_phase]] = number
    first = np.flatnonzero(np.r_[True, np.diff(cause_of) != 0]) if len(cause_of) else np.empty(0, np.int64)
    last = np.r_[first[1:], len(cause_of)] - 1
    merged = np.column_stack([parts[first, 0], parts[last, 1]])
    has_cause = cause_of[first] >= 0
    return Charges(merged[has_cause], cause_of[first][has_cause])
