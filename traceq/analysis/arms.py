"""What did each arm of a recording come to that ran in processes of its own?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.facts.ranks.job import Job
from traceq.model import Arm, Manifest, Processes, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit

__all__ = ["batch_of", "merge", "step_of", "summarize"]

POSITION = 4

_COLUMNS = (
    Column("key", "key"),
    Column("arm", "arm"),
    Column("num_processes", "processes", Unit.COUNT),
    Column("num_steps", "steps", Unit.COUNT),
    Column("batch_size", "batch", Unit.COUNT),
    Column("samples_per_step", "samples a step", Unit.COUNT),
    Column("step_ns", "step", Unit.NS),
    Column("spread_ns", "within", Unit.NS),
    Column("samples_per_second", "samples", Unit.RATE),
    Column("peak_bytes", "memory", Unit.BYTES),
    Column("state_bytes", "weights, moments", Unit.BYTES),
    Column("allocated_bytes", "in use", Unit.BYTES),
    Column("reserved_bytes", "reserved", Unit.BYTES),
    Column("head_room_bytes", "head-room", Unit.BYTES),
    Column("status", "ended"),
    Column("fault", "fault"),
)
_VIEWED = (
    "arm",
    "num_processes",
    "num_steps",
    "step_ns",
    "spread_ns",
    "samples_per_second",
    "peak_bytes",
    "state_bytes",
    "status",
)
_NOTED = ("state_bytes", "allocated_bytes", "reserved_bytes", "head_room_bytes")
"""What a recipe may note of an arm, by these names."""


def summarize(trace: Trace) -> None:
    """Nothing: profiled steps have no part in it."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """A row an arm: its unprofiled step (the median of its processes' medians, and within what these lie), the samples
    that all ranks train on in a second, the most memory of any rank; nothing of arms that share a process.
    """
    manifest = job.manifest
    rows: tuple[tuple[Cell, ...], ...] = ()
    if manifest is not None and manifest.apart:
        rows = tuple(_row(manifest, arm, job.processes) for arm in manifest.arms)
    table = Table("arms", "Arms", _COLUMNS, rows)
    return Report("arms", (table,), (_view(table),) if rows else ())


def _row(manifest: Manifest, arm: Arm, processes: Sequence[Processes]) -> tuple[Cell, ...]:
    found = next((each for each in processes if each.arm == arm.name), None)
    step_ns = step_of(found)
    samples = arm.samples_per_step or None
    return (
        arm.name,
        arm.name,
        len(found.median_ns) if found else 0,
        int(found.num_steps.sum()) if found else 0,
        batch_of(manifest, arm),
        samples,
        round(step_ns) if step_ns else None,
        int(np.ptp(found.median_ns)) if found and len(found.median_ns) > 1 else None,
        samples * 1e9 / step_ns if samples and step_ns else None,
        int(found.peak_bytes.max()) if found else None,
        *(arm.facts.get(key) for key in _NOTED),
        arm.status,
        arm.fault,
    )


def step_of(found: Processes | None) -> float | None:
    """Median over its processes of an arm's median step, ns; None without a step."""
    return float(np.median(found.median_ns)) if found else None


def batch_of(manifest: Manifest, arm: Arm) -> int | None:
    """Samples a step of one rank takes at once, as the parameter `batch_size` has it; None without one."""
    size = arm.varied.get("batch_size", manifest.parameters.get("batch_size"))
    return size if isinstance(size, int) else None


def _view(table: Table) -> Table:
    at = [n for n, column in enumerate(table.columns) if column.key in _VIEWED]
    rows = tuple(tuple(row[n] for n in at) for row in table.rows)
    note = "`traceq diff` on the run decides from these." if len(rows) > 1 else ""
    title = "Arms, each in processes of its own (unprofiled steps of the job: the slowest rank)"
    return Table("arms", title, tuple(table.columns[n] for n in at), rows, note=note)
