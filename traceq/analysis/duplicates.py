"""Which kernels do the same work again: the same kernel, grid, op and input shapes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis._parts import of_all
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Column, Report, Table, Unknown
from traceq.units import Unit

POSITION = 71

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("phase", "phase"),
    Column("op", "op"),
    Column("shapes", "shapes"),
    Column("name", "kernel"),
    Column("grid", "grid"),
    Column("num", "num", Unit.COUNT),
    Column("gpu_ns", "GPU time", Unit.NS),
)

OTHERS = "(others)"
_LEAST = 0.001
"""Part of a rank's kernel time from which a row stands for itself."""

_Row = tuple[int, str, str, str, str, str, int, int]


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, and whether it tells what they rest on."""

    rows: tuple[_Row, ...]
    has_shapes: bool
    has_kernels: bool


def summarize(trace: Trace) -> _Rank:
    """Kernels that ran twice or more with one op, shapes and grid, over the whole trace, longest first.

    Those whose op or shapes the trace does not tell are left out. What takes less than 0.1 % of a rank's kernel time is
    one row, OTHERS.
    """
    has_shapes = bool((trace.events.shapes >= 0).any())
    return _Rank(tuple(_rows(trace)), has_shapes, len(launched_kernels(trace).work) > 0)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks."""
    lacking = any(part.has_kernels for part in parts) and not any(part.has_shapes for part in parts)
    unknown = (Unknown("shapes", "record_shapes=True"),) if lacking else ()
    return Report("duplicates", (Table("duplicates", "Duplicates", _COLUMNS, of_all(parts)),), unknown=unknown)


def _rows(trace: Trace) -> list[_Row]:
    events, kernels, found = trace.events, launched_kernels(trace), phases(trace)
    sized = np.flatnonzero((kernels.op >= 0) & (events.shapes[kernels.op] >= 0))
    row, op = device_work(trace).rows[kernels.work[sized]], kernels.op[sized]
    phase = found.of_work[kernels.work[sized]]
    groups = group([phase, events.name[op], events.shapes[op], events.name[row], events.grid[row]])
    num, gpu_ns = groups.count(), groups.sum(kernels.ns[sized])
    texts = (*events.strings, "")  # a grid that is absent is -1
    again = [at for at in np.argsort(-np.array(gpu_ns, np.int64), kind="stable").tolist() if num[at] > 1]
    least = _LEAST * int(kernels.ns.sum())
    told = [at for at in again if gpu_ns[at] >= least]
    rows: list[_Row] = []
    for at in told:
        phase_of, op_of, shapes, name, grid = groups.keys[at].tolist()
        words = found.names[phase_of], texts[op_of], texts[shapes], texts[name], texts[grid]
        rows.append((trace.rank, *words, num[at], gpu_ns[at]))
    if rest := again[len(told) :]:
        rows.append((trace.rank, "", "", "", OTHERS, "", sum(num[at] for at in rest), sum(gpu_ns[at] for at in rest)))
    return rows
