"""Exposed communication of the ranks of a job divided in waits and transfers, from their files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .collectives import is_communication
from .partition import pieces
from .phases import Phases
from .reader import Event, Trace, read
from .spans import clip, union
from .steps import windows
from .syncs import find_syncs
from .unrecorded import gaps, opening

__all__ = ["exposed_waits", "job_finding_times"]

Instance = tuple[int, str, int]
"""(step in which the host launched it, kernel, how many of that name the step launched before)."""


def exposed_waits(paths: Sequence[Path]) -> list[dict[tuple[str, str], float]]:
    """By rank: (phase, `exposed_wait` or `exposed_transfer`) -> ns of a mean counted step.

    The n-th kernel of a name in a step is the same collective on all ranks; in one that all of them ran, each waits
    until the last one starts. A rank's clock is off by the median of its ends less the median end over ranks.
    """
    traces = [read(path) for path in paths]
    ran, shift, latest = arrivals(traces)
    shared = list(latest)
    of_all = set.intersection(*map(counted_steps, traces))
    results = []
    for trace, each, ns in zip(traces, ran, shift, strict=True):
        waiting = [
            (each[key].start, min(round(latest[key] - ns), each[key].end))
            for key in shared
            if latest[key] - ns > each[key].start
        ]
        results.append(split(trace, union(waiting), of_all or counted_steps(trace)))
    return results


def arrivals(
    traces: Sequence[Trace],
) -> tuple[list[dict[Instance, Event]], list[float], dict[Instance, float]]:
    """Each rank's kernels; what to add to its times; when the last rank arrived, for what all ranks ran."""
    ran = [instances(trace) for trace in traces]
    base = [int(trace.meta.get("baseTimeNanoseconds", 0)) for trace in traces]
    base = [ns - base[0] for ns in base]  # times of today are too large for exact halves
    shared = [key for key in ran[0] if all(key in each for each in ran)]
    zero = ran[0][shared[0]].end if shared else 0
    late = [0.0 for _ in ran]
    for _ in range(2):  # in the second pass clocks that are far off do not decide which end is the median
        ends = [[each[key].end - zero + ns for key in shared] for each, ns in zip(ran, base, strict=True)]
        middle = [median(end - off for end, off in zip(met, late, strict=True)) for met in zip(*ends, strict=True)]
        late = [median(end - mid for end, mid in zip(one, middle, strict=True)) if one else 0.0 for one in ends]
    shift = [ns - off for ns, off in zip(base, late, strict=True)]
    latest = {key: max(each[key].start + ns for each, ns in zip(ran, shift, strict=True)) for key in shared}
    return ran, shift, latest


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


def split(trace: Trace, waiting: list[tuple[int, int]], counts: set[int]) -> dict[tuple[str, str], float]:
    """Exposed communication of the steps whose number counts, inside and outside of some times."""
    phases, syncs, hidden = Phases(trace), find_syncs(trace), gaps(trace)
    counted = [step for step in windows(trace, phases, opening(trace, hidden)) if number_of(step) in counts]
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for step in counted:
        for piece in pieces(trace, phases, syncs, hidden, step["start_ns"], step["end_ns"]):
            if piece.category == "exposed_comm":
                wait = sum(end - start for start, end in clip(waiting, piece.start, piece.end))
                sums[piece.phase, "exposed_wait"] += wait / len(counted)
                sums[piece.phase, "exposed_transfer"] += (piece.end - piece.start - wait) / len(counted)
    return sums


def job_finding_times(paths: Sequence[Path]) -> dict[str, float]:
    """Times of the findings of a job, ns of a mean counted step: `exposed_wait`, `exposed_transfer`, `straggler 2`.

    Of `straggler 2`: what the others wait for rank 2 as the last to arrive while nothing computes, mean over them, a
    moment counted once; without the first collective of all, in the steps that all ranks count.
    """
    times: dict[str, float] = defaultdict(float)
    for each in exposed_waits(paths):
        for (_, category), ns in each.items():
            times[category] += ns / len(paths)
    traces = [read(path) for path in paths]
    ran, shift, latest = arrivals(traces)
    counted = set.intersection(*map(counted_steps, traces))
    order = sorted((key for key in latest if key[0] in counted or len(counted) == 0), key=lambda key: ran[0][key].start)
    first = min(latest, key=lambda key: latest[key])
    steps_met = {key[0] for key in order if key != first}
    last = {key: max(range(len(ran)), key=lambda rank: ran[rank][key].start + shift[rank]) for key in order}
    for rank, (trace, each) in enumerate(zip(traces, ran, strict=True)):
        exposed, reach = exposed_spans(trace), 0
        for key in sorted(order, key=lambda key: each[key].start):
            end = min(round(latest[key] - shift[rank]), each[key].end)
            if key != first and end > each[key].start:
                waiting = [(max(each[key].start, reach), max(end, reach))]
                ns = sum(b - a for start, stop in exposed for a, b in clip(waiting, start, stop))
                times[f"straggler {last[key]}"] += ns / (len(paths) - 1) / len(steps_met)
                reach = max(reach, end)
    return times


def counted_steps(trace: Trace) -> set[int]:
    """The numbers of the steps that count."""
    steps = windows(trace, Phases(trace), opening(trace, gaps(trace)))
    return {number_of(step) for step in [s for s in steps if not s["partial"]] or steps}


def number_of(step: dict[str, Any]) -> int:
    """The number in the name of a step."""
    return int(step["name"].rpartition("#")[2])


def exposed_spans(trace: Trace) -> list[tuple[int, int]]:
    """When only collectives run, in all steps."""
    phases, hidden = Phases(trace), gaps(trace)
    steps = windows(trace, phases, opening(trace, hidden))
    every = pieces(trace, phases, find_syncs(trace), hidden, steps[0]["start_ns"], steps[-1]["end_ns"])
    return [(piece.start, piece.end) for piece in every if piece.category == "exposed_comm"]
