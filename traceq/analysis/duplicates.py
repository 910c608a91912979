"""Which kernels repeat the same work: the same kernel, grid, op and input shapes?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analysis._rank_rows import of_all
from traceq.claims.limits import NOTHING
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.events.unrecorded_work import lacks_shapes
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Report, Table, Unknown, column
from traceq.units import Unit

OTHERS = "(others)"


@frozen
class DuplicateRow:
    """Kernels of one phase that ran twice or more with one op, shapes and grid."""

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    op: str = column("op")
    shapes: str = column("shapes")
    name: str = column("kernel")
    """`(others)` for all below 0.1 % of a rank's time."""
    grid: str = column("grid")
    num: int = column("num", Unit.COUNT)
    gpu_ns: int = column("GPU time", Unit.NS)


@frozen
class _Rank:
    """One rank's rows, and whether its trace has ops, none of them with shapes."""

    rows: tuple[DuplicateRow, ...]
    lacks_shapes: bool


def summarize(trace: Trace) -> _Rank:
    """Return kernels that ran twice or more with one op, shapes and grid, longest first.

    Those whose op or shapes are unknown are left out. Groups below 0.1 % of a rank's kernel time are one row, OTHERS.
    """
    return _Rank(tuple(_rows(trace)), lacks_shapes(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks."""
    is_unknown = bool(parts) and all(part.lacks_shapes for part in parts)
    unknown = (Unknown("shapes", "record_shapes=True"),) if is_unknown else ()
    return Report("duplicates", (Table.of("duplicates", "Duplicates", DuplicateRow, of_all(parts)),), unknown=unknown)


def _rows(trace: Trace) -> list[DuplicateRow]:
    events, kernels, labels = trace.events, launched_kernels(trace), phases(trace)
    sized = np.flatnonzero((kernels.op >= 0) & (events.shapes[kernels.op] >= 0))
    row, op = device_work(trace).rows[kernels.work[sized]], kernels.op[sized]
    phase = labels.work_phase[kernels.work[sized]]
    groups = group([phase, events.name[op], events.shapes[op], events.name[row], events.grid[row]])
    num, gpu_ns = np.bincount(groups.group_ids, minlength=len(groups.keys)), groups.totals(kernels.ns[sized])
    texts = (*events.strings, "")  # an absent grid is -1
    repeated = np.argsort(-gpu_ns, kind="stable")
    repeated = repeated[num[repeated] > 1]
    num_large = int((gpu_ns[repeated] >= NOTHING * int(kernels.ns.sum())).sum())
    rows = []
    for index in repeated[:num_large].tolist():
        phase_number, *names = groups.keys[index].tolist()
        op_name, shapes, name, grid = (texts[text] for text in names)
        phase_name = labels.names[phase_number]
        sums = int(num[index]), int(gpu_ns[index])
        rows.append(DuplicateRow(trace.rank, phase_name, op_name, shapes, name, grid, *sums))
    if len(rest := repeated[num_large:]):
        sums = int(num[rest].sum()), int(gpu_ns[rest].sum())
        rows.append(DuplicateRow(trace.rank, "", "", "", OTHERS, "", *sums))
    return rows
