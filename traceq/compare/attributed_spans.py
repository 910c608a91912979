"""When the causes of a diff took their time: on either side, the stretches that stand on the account of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.compare.attribution import charged
from traceq.compare.cost_centers import CAUSE_KINDS, actors
from traceq.compare.result import Cause
from traceq.facts.timeline.phases import phases
from traceq.intervals import Spans
from traceq.model import Trace

__all__ = ["Charges", "charges"]


@dataclass(frozen=True, slots=True, eq=False)
class Charges:
    """M stretches by start: `parts` int64[M, 2] ns, `cause` int64[M] into the causes asked for."""

    parts: Spans
    cause: NDArray[np.int64]


def charges(trace: Trace, causes: Sequence[Cause]) -> Charges:
    """Stretches charged to these causes, neighbours of one cause as one. A cause that stands for several accounts has
    those of its own name alone.
    """
    parts, _, phase, actor = charged(trace)
    found, names = actors(trace), phases(trace).names
    cause = np.full(len(parts), -1)
    own_phase = np.where(actor < found.latency, found.phase[actor], phase)
    for number, wanted in enumerate(causes):
        named = np.array([text == wanted.name for text in found.texts], np.bool_)
        in_phase = np.array([name == wanted.phase for name in names], np.bool_)
        is_kind = found.kind[actor] == CAUSE_KINDS.index(wanted.kind)
        cause[is_kind & named[found.name[actor]] & in_phase[own_phase]] = number
    opens = np.flatnonzero(np.r_[True, np.diff(cause) != 0]) if len(cause) else np.empty(0, np.int64)
    closes = np.r_[opens[1:], len(cause)] - 1
    stretches = np.column_stack([parts[opens, 0], parts[closes, 1]])
    kept = cause[opens] >= 0
    return Charges(stretches[kept], cause[opens][kept])
