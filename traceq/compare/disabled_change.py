"""Whether a disabled change issues anything that a step without the change does not issue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.run_ranks import RunRanks
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.model import Category, Trace

__all__ = ["added_ops_text"]


def added_ops_text(arm: RunRanks, reference: RunRanks, phase: str) -> str:
    """Return one sentence that compares the arm with the reference, op by op and sync by sync.

    On all ranks that both have; "" where there are none.
    """
    name, other = arm.run.arm, reference.run.arm
    common = [rank for rank in arm.run.ranks if rank in reference.run.ranks]
    if not common:
        return ""
    ops = [(_ops_per_step(arm.trace(rank)), _ops_per_step(reference.trace(rank))) for rank in common]
    extra = sum((_extra(ours, theirs) for ours, theirs in ops), Counter[str]())
    if extra:
        most = ", ".join(f"{count:g} {text}" for text, count in extra.most_common(3))
        return f"{name} adds ops to {other}, per step: {most}."
    num_ops = f"{sum(_ops_per_step(arm.trace(arm.run.ranks[0])).values()):,.0f}"
    is_same = all(ours == theirs for ours, theirs in ops)
    issued = f"the same {num_ops} ops per step" if is_same else f"{num_ops} ops per step, none more often"
    return f"{name} adds no op to {other}: {issued}, {_syncs_text(arm, phase)}."


def _syncs_text(arm: RunRanks, phase: str) -> str:
    on_device = any(rank.has_device for rank in arm.job.ranks)
    one, several = ("device-to-host copy", "device-to-host copies") if on_device else ("scalar sync", "scalar syncs")
    where = f" in {phase}" if phase else ""
    num = _num_syncs(arm, phase)
    return f"{num:g} {one if num == 1 else several}{where}, as many as without it" if num else f"no {one}{where}"


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
