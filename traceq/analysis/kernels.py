"""Which kernels take the device's time?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis._parts import of_all
from traceq.analysis._wording import more_rows, over_ranks
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import short_kernel
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Column, Report, Table
from traceq.units import Unit, format_value

POSITION = 70

_TOP, _TELLING = 6, 0.1
_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("phase", "phase"),
    Column("name", "kernel"),
    Column("num", "num", Unit.COUNT),
    Column("gpu_ns", "GPU time", Unit.NS),
)

_Row = tuple[str, int, str, str, int, int]


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, its kernels, and how many of them are tiny."""

    rows: tuple[_Row, ...]
    num: int
    num_tiny: int


def summarize(trace: Trace) -> _Rank:
    """Kernels by phase and name, longest first, over the whole trace."""
    tiny = launched_kernels(trace).tiny
    return _Rank(tuple(_rows(trace)), len(tiny), int(tiny.sum()))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see sums over them, and variants of one kernel as one."""
    rows = of_all(parts)
    sums: dict[tuple[str, str], list[int]] = {}
    for _, _, phase, name, num, gpu_ns in rows:
        total = sums.setdefault((phase, short_kernel(name)), [0, 0])
        total[0] += num
        total[1] += gpu_ns
    longest = sorted(sums.items(), key=lambda item: -item[1][1])
    everything = sum(gpu_ns for _, gpu_ns in sums.values()) or 1
    shown = tuple((*words, num, ns, 100 * ns / everything) for words, (num, ns) in longest[:_TOP])
    rest = more_rows(len(longest) - _TOP)
    num_all, num_tiny = sum(part.num for part in parts), sum(part.num_tiny for part in parts)
    if num_all and num_tiny / num_all >= _TELLING:
        share = format_value(100 * num_tiny / num_all, Unit.PERCENT)
        rest = f"{share} of {num_all:,} kernels are tiny: under 10 us, or shorter than their launch. {rest}".strip()
    columns = (*_COLUMNS[2:], Column("share", "share", Unit.PERCENT))
    view = Table("kernels", f"Kernels ({over_ranks(job)})", columns, shown, note=rest)
    return Report("kernels", (Table("kernels", "Kernels", _COLUMNS, rows),), (view,) if rows else ())


def _rows(trace: Trace) -> list[_Row]:
    kernels, events, found = launched_kernels(trace), trace.events, phases(trace)
    groups = group([found.of_work[kernels.work], events.name[device_work(trace).rows[kernels.work]]])
    gpu_ns, num = groups.sum(kernels.ns), groups.count()
    rows: list[_Row] = []
    for at in np.argsort(-np.array(gpu_ns, np.int64), kind="stable").tolist():
        phase, name = found.names[int(groups.keys[at, 0])], events.strings[int(groups.keys[at, 1])]
        rows.append((f"{phase}|{name}", trace.rank, phase, name, num[at], gpu_ns[at]))
    return rows
