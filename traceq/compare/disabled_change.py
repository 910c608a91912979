"""Whether a disabled change issues anything that a step without the change does not issue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.compare.statement import Statement, state
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.run_ranks import RunRanks
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.model import Category, Trace

__all__ = ["added_ops"]

_MOST_NAMED = 3


def added_ops(arm: RunRanks, reference: RunRanks, phase: str) -> Statement | None:
    """Return whether the arm issues anything that the reference does not, op by op and sync by sync.

    On all ranks that both have; None where there are none.
    """
    common = [rank for rank in arm.run.ranks if rank in reference.run.ranks]
    if not common:
        return None
    context = {"a": reference.run.arm, "b": arm.run.arm}
    ops = [(_ops_per_step(arm.trace(rank)), _ops_per_step(reference.trace(rank))) for rank in common]
    extra = sum((_extra(ours, theirs) for ours, theirs in ops), Counter[str]())
    if extra:
        added = ", ".join(f"{count:g} {text}" for text, count in extra.most_common(_MOST_NAMED))
        return state("not_free", added=added, added_mean=extra.total()).within(context)
    on_device = any(rank.has_device for rank in arm.job.ranks)
    num_syncs = _num_syncs(arm, phase)
    return state(
        "free",
        num_ops=round(sum(_ops_per_step(arm.trace(arm.run.ranks[0])).values())),
        phase=phase or "a step",
        copies_mean=num_syncs if on_device else None,
        reads_mean=None if on_device else num_syncs,
    ).within(context)


def _extra(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Counter[str]:
    """Return the ops that the first issues more often per step than the second, and how many more."""
    more = {name: num - theirs.get(name, 0) for name, num in ours.items()}
    return Counter({name: num for name, num in more.items() if num > 0})


def _ops_per_step(trace: Trace) -> dict[str, float]:
    """Return host ops inside the steps and device work launched there, per step by name.

    Device work counts where it was launched, as it may run after the end of the last step.
    """
    events, work = trace.events, device_work(trace)
    ops, launches = events.rows(Category.CPU_OP), work.call[work.linked]
    rows = np.r_[ops[_in_steps(trace, ops)], work.rows[work.linked][_in_steps(trace, launches)]]
    names, counts = np.unique(events.name[rows], return_counts=True)
    num_steps = len(steps(trace))
    return {events.strings[n]: c / num_steps for n, c in zip(names.tolist(), counts.tolist(), strict=True)}


def _in_steps(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    host, start = steps(trace).host, trace.events.ts[rows]
    inside: NDArray[np.bool_] = (start >= host[0, 0]) & (start < host[-1, 1])
    return inside


def _num_syncs(arm: RunRanks, phase: str) -> float:
    """Return device-to-host syncs per step in one phase or in all, on the rank with most.

    Without a device: reads of a tensor's value.
    """
    most = 0.0
    for trace in map(arm.trace, arm.run.ranks):
        all_syncs, names = syncs(trace), phases(trace).names
        selected = np.isin(all_syncs.kind, [SYNC_KINDS.index("dtoh"), SYNC_KINDS.index("scalar")])
        if phase:
            selected &= all_syncs.phase == (names.index(phase) if phase in names else -1)
        most = max(most, int(selected.sum()) / len(steps(trace)))
    return most
