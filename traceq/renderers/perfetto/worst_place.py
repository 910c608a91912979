"""Where to look first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.steps import steps
from traceq.model import Run, Trace
from traceq.renderers.perfetto.clock import one_clock
from traceq.report import Finding

__all__ = ["WorstPlace", "syncs_of", "worst_place"]

_AROUND = 3
"""How many times the length of a sync is shown on either side of it."""


@dataclass(frozen=True, slots=True)
class WorstPlace:
    """A stretch of one rank's time, [start_ns, end_ns) as in the exported file, and why it is worth a look."""

    rank: int
    start_ns: int
    end_ns: int
    why: str


def worst_place(run: Run, findings: Sequence[Finding]) -> WorstPlace:
    """The sync that costs most, of those that a finding is about; else the longest step."""
    clock = one_clock(run)
    for finding in findings:
        costs = [syncs(trace).cost[syncs_of(trace, finding)].max(initial=0) for trace in run.traces]
        at = int(np.argmax(costs))
        if costs[at] > 0:
            return _around_sync(run.traces[at], finding, int(clock.offset[at]))
    longest = [steps(trace).window[steps(trace).counted] for trace in run.traces]
    at = int(np.argmax([(window[:, 1] - window[:, 0]).max() for window in longest]))
    start, end = longest[at][np.argmax(longest[at][:, 1] - longest[at][:, 0])].tolist()
    why = "the longest step" if steps(run.traces[at]).marked else "the whole trace"
    return WorstPlace(run.traces[at].rank, start + int(clock.offset[at]), end + int(clock.offset[at]), why)


def syncs_of(trace: Trace, finding: Finding) -> NDArray[np.int64]:
    """Indices into Syncs of those that a finding is about: `key` is that of a row of `syncs`."""
    found, words = syncs(trace), finding.key.split("|")
    if len(words) < 3 or words[0] not in SYNC_KINDS:
        return np.empty(0, np.int64)
    texts = found.origin.texts
    ops, lines = (np.array([text == word for text in texts], np.bool_) for word in words[1:3])
    return np.flatnonzero((found.kind == SYNC_KINDS.index(words[0])) & ops[found.origin.op] & lines[found.origin.line])


def _around_sync(trace: Trace, finding: Finding, offset_ns: int) -> WorstPlace:
    found, chosen = syncs(trace), syncs_of(trace, finding)
    worst = chosen[np.argmax(found.cost[chosen])]
    start, blocked = int(found.start[worst]) + offset_ns, int(found.blocked[worst])
    around = _AROUND * max(blocked, int(found.cost[worst]))
    return WorstPlace(trace.rank, start - around, start + blocked + around, finding.text)
