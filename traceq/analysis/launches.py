"""Does the device wait because the host cannot launch fast enough?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._parts import Part, of_all
from traceq.analysis._wording import per_step
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.report import Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 72

_BOUND_PCT, _TINY_PCT = 10.0, 25.0
_LONGEST_GAP_NS = 1_000_000
"""A longer one is no matter of launching: the host does something else."""
_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("phase", "phase"),
    Column("num_kernels", "kernels", Unit.COUNT),
    Column("num_tiny", "tiny", Unit.COUNT),
    Column("tiny_gpu_ns", "GPU time of tiny ones", Unit.NS),
    Column("window_ns", "time", Unit.NS),
    Column("host_bound_ns", "device waits for launches", Unit.NS),
    Column("launch_bound_pct", "launch-bound", Unit.PERCENT),
)

_Row = tuple[int, str, int, int, int, int, int, float]


def summarize(trace: Trace) -> Part[_Row]:
    """Kernels, tiny kernels, and the share of its time in which the device waits for a launch, of each phase.

    Kernels are those of the whole trace, times those of its windows.
    """
    return Part(tuple(_rows(trace)), _launch_bound(trace))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks, and the rank that waits longest for launches."""
    found = on_the_worst_rank(job, (part.finding for part in parts))
    return Report("launches", (Table("launches", "Launches", _COLUMNS, of_all(parts)),), findings=found)


def _rows(trace: Trace) -> list[_Row]:
    kernels, known, done = launched_kernels(trace), phases(trace), activity(trace)
    if len(kernels.work) == 0:
        return []
    of_kernel, size = known.of_work[kernels.work], len(known.names)

    def total(phase: NDArray[np.int64], values: NDArray[np.int64]) -> list[int]:
        sums = np.zeros(size, np.int64)
        np.add.at(sums, phase, values)
        return list(map(int, sums))

    inside = span_index(steps(trace).window, done.parts[:, 0]) >= 0
    window_ns = total(done.phase[inside], done.ns[inside])
    bound = inside & (done.doing == TimeCategory.HOST_BOUND)
    bound_ns = total(done.phase[bound], done.ns[bound])
    columns = zip(
        known.names,
        np.bincount(of_kernel, minlength=size).tolist(),
        np.bincount(of_kernel[kernels.tiny], minlength=size).tolist(),
        total(of_kernel[kernels.tiny], kernels.ns[kernels.tiny]),
        window_ns,
        bound_ns,
        strict=True,
    )
    return [
        (trace.rank, name, num, tiny, tiny_ns, window, bound, round(100 * bound / window, 3) if window else 0.0)
        for name, num, tiny, tiny_ns, window, bound in columns
        if num or window
    ]


def _launch_bound(trace: Trace) -> Finding | None:
    """The device idles in many short gaps, each until the host has launched the next kernel; a gap that a sync left is
    the sync's.
    """
    known, found = steps(trace), launched_kernels(trace)
    tiny_pct = 100 * float(found.tiny.mean()) if len(found.tiny) else 0.0
    if tiny_pct < _TINY_PCT:
        return None
    done = activity(trace)
    gaps = done.when(TimeCategory.HOST_BOUND)
    gaps = gaps[gaps[:, 1] - gaps[:, 0] <= _LONGEST_GAP_NS]
    starving = span_index(gaps, syncs(trace).start + syncs(trace).blocked)
    gaps = np.delete(gaps, starving[starving >= 0], axis=0)
    counted = known.window[known.counted]
    waited = np.where(span_index(gaps, done.parts[:, 0]) >= 0, done.ns, 0)
    waited[~in_counted_steps(trace)] = 0
    whole_ns, total_ns = int((counted[:, 1] - counted[:, 0]).sum()), int(waited.sum())
    if 100 * total_ns < _BOUND_PCT * whole_ns:
        return None
    by_phase = np.bincount(done.phase, waited, len(phases(trace).names))
    names = [phases(trace).names[at] for at in np.argsort(-by_phase)[:2].tolist() if by_phase[at] >= total_ns / 5]
    each_ns = round(total_ns / len(counted))
    text = (
        f"launch-bound: in {' and '.join(names)} the device waits {format_value(each_ns, Unit.NS)} {per_step(known)} "
        f"for launches ({format_value(tiny_pct, Unit.PERCENT)} of the kernels are tiny): CUDA graphs, torch.compile, "
        "or larger batches"
    )
    return Finding("launch_bound", "high", text, each_ns, instead_of=("host_bound",))
