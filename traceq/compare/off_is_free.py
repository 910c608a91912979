"""Is the switched-off arm truly free: does its step do one thing more than the step without the change?"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.model import Category, Run, Trace

__all__ = ["is_free"]


def is_free(arm: Run, reference: Run, phase: str) -> str:
    """One sentence: the arm against the reference, op by op and sync by sync, on the ranks that both have. "" where
    there are none.
    """
    name, other = arm.arm, reference.arm
    matches = [(x, y) for x in arm.traces for y in reference.traces if x.rank == y.rank]
    if not matches:
        return ""
    extra: Counter[str] = Counter()
    for trace, match in matches:
        extra += _per_step(trace, match)
    on_device = any(len(device_work(trace)) for trace in arm.traces)
    what, several = ("device-to-host copy", "device-to-host copies") if on_device else ("scalar sync", "scalar syncs")
    if extra:
        most = ", ".join(f"{count:g} {text}" for text, count in extra.most_common(3))
        return f"{name} is not free: more than {other}, a step: {most}."
    num_ops = _num_ops(arm.traces[0])
    num_syncs = _num_syncs(arm, phase)
    where = f" in {phase}" if phase else ""
    some = f"{num_syncs:g} {what if num_syncs == 1 else several}{where}, as many as without it"
    told = some if num_syncs else f"no {what}{where}"
    ops = f"of its {num_ops:,.0f} ops a step not one more than {other}, which lacks the change"
    return f"{name} is free: {told}, and {ops}."


def _per_step(trace: Trace, reference: Trace) -> Counter[str]:
    """What the trace does more often in a step than the reference."""
    ours, theirs = _counts(trace), _counts(reference)
    num, num_reference = len(steps(trace)), len(steps(reference))
    more = {text: ours[text] / num - theirs[text] / num_reference for text in ours}
    return Counter({text: count for text, count in more.items() if count > 0})


def _counts(trace: Trace) -> Counter[str]:
    """Host ops inside the steps and the device work launched there, by name; it may run after the last step's end."""
    events, work = trace.events, device_work(trace)
    ops, launches = events.rows(Category.CPU_OP), work.call[work.linked]
    rows = np.r_[ops[_in_steps(trace, ops)], work.rows[work.linked][_in_steps(trace, launches)]]
    names, counts = np.unique(events.name[rows], return_counts=True)
    return Counter({events.strings[n]: c for n, c in zip(names.tolist(), counts.tolist(), strict=True)})


def _in_steps(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    host, start = steps(trace).host, trace.events.ts[rows]
    inside: NDArray[np.bool_] = (start >= host[0, 0]) & (start < host[-1, 1])
    return inside


def _num_ops(trace: Trace) -> float:
    return sum(_counts(trace).values()) / len(steps(trace))


def _num_syncs(run: Run, phase: str) -> float:
    """Device-to-host syncs (without a device: reads of a value) in one phase or in all, a step, on the worst rank."""
    worst = 0.0
    for trace in run.traces:
        found, names = syncs(trace), phases(trace).names
        wanted = [SYNC_KINDS.index("dtoh"), SYNC_KINDS.index("scalar")]
        mine = np.isin(found.kind, wanted)
        if phase:
            mine &= found.phase == (names.index(phase) if phase in names else -1)
        worst = max(worst, int(mine.sum()) / len(steps(trace)))
    return worst
