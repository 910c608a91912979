"""Exposed communication of the ranks of a job divided in waits and transfers, from their files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from .collectives import is_communication
from .partition import pieces
from .phases import Phases
from .reader import Event, Trace, read
from .spans import clip, union
from .steps import windows
from .syncs import find_syncs
from .unrecorded import gaps, opening

__all__ = ["exposed_waits"]

Instance = tuple[int, str, int]
"""(step in which the host launched it, kernel, how many of that name the step launched before)."""


def exposed_waits(paths: Sequence[Path]) -> list[dict[tuple[str, str], float]]:
    """By rank: (phase, `exposed_wait` or `exposed_transfer`) -> ns of a mean counted step.

    The n-th kernel of a name in a step is the same collective on all ranks; in one that all of them ran, each waits
    until the last one starts. A rank's clock is off by the median of its ends less the median end over ranks.
    """
    traces = [read(path) for path in paths]
    ran = [instances(trace) for trace in traces]
    base = [int(trace.meta.get("baseTimeNanoseconds", 0)) for trace in traces]
    base = [ns - base[0] for ns in base]  # times of today are too large for exact halves
    shared = [key for key in ran[0] if all(key in each for each in ran)]
    ends = {key: median(each[key].end + ns for each, ns in zip(ran, base, strict=True)) for key in shared}
    off = [median(each[key].end + ns - ends[key] for key in shared) for each, ns in zip(ran, base, strict=True)]
    shift = [ns - late for ns, late in zip(base, off, strict=True)]
    latest = {key: max(each[key].start + ns for each, ns in zip(ran, shift, strict=True)) for key in shared}
    results = []
    for trace, each, ns in zip(traces, ran, shift, strict=True):
        waiting = [
            (each[key].start, min(round(latest[key] - ns), each[key].end))
            for key in shared
            if latest[key] - ns > each[key].start
        ]
        results.append(split(trace, union(waiting)))
    return results


def instances(trace: Trace) -> dict[Instance, Event]:
    """The kernels of collectives, in the order in which the host launched them."""
    seen: Counter[tuple[int, str]] = Counter()
    kernel_of: dict[Instance, Event] = {}
    kernels = [op for op in trace.device_ops if is_communication(op) and op.row in trace.launches]
    for op in sorted(kernels, key=lambda op: trace.launches[op.row].start):
        launched = trace.launches[op.row].start
        for name, start, end in trace.host_steps:
            if start <= launched < end:
                step = int(name.rpartition("#")[2])
                kernel_of[step, op.name, seen[step, op.name]] = op
                seen[step, op.name] += 1
    return kernel_of


def split(trace: Trace, waiting: list[tuple[int, int]]) -> dict[tuple[str, str], float]:
    """Exposed communication of the counted steps, inside and outside of some times."""
    phases, syncs, hidden = Phases(trace), find_syncs(trace), gaps(trace)
    steps = windows(trace, phases, opening(trace, hidden))
    counted = [step for step in steps if not step["partial"]] or steps
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for step in counted:
        for piece in pieces(trace, phases, syncs, hidden, step["start_ns"], step["end_ns"]):
            if piece.category == "exposed_comm":
                wait = sum(end - start for start, end in clip(waiting, piece.start, piece.end))
                sums[piece.phase, "exposed_wait"] += wait / len(counted)
                sums[piece.phase, "exposed_transfer"] += (piece.end - piece.start - wait) / len(counted)
    return sums
