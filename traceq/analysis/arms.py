"""How do the arms of a recording compare that ran in separate processes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceq.analysis import sentences
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Arm, Manifest, Processes, Trace
from traceq.report import Cell, Report, Table, column
from traceq.units import Unit


@frozen
class ArmRow:
    """An arm with separate processes, by unprofiled steps of the slowest rank.

    The recipe noted all bytes but `peak_bytes`.
    """

    key: str = column("key", is_hidden=True)
    arm: str = column("arm")
    num_processes: int = column("processes", Unit.COUNT)
    """With steps, all ranks together counting as one."""
    num_steps: int = column("steps", Unit.COUNT)
    batch_size: int | None = column("batch", Unit.COUNT, is_hidden=True)
    samples_per_step: int | None = column("samples per step", Unit.COUNT, is_hidden=True)
    step_ns: int | None = column("step", Unit.NS)
    """Median of the medians of its processes."""
    spread_ns: int | None = column("range", Unit.NS)
    """Range of these medians."""
    samples_per_second: float | None = column("samples", Unit.RATE)
    peak_bytes: int | None = column("memory", Unit.BYTES)
    state_bytes: Cell = column("weights, moments", Unit.BYTES)
    allocated_bytes: Cell = column("allocated", Unit.BYTES, is_hidden=True)
    """Most in use, minus the start."""
    reserved_bytes: Cell = column("reserved", Unit.BYTES, is_hidden=True)
    head_room_bytes: Cell = column("headroom", Unit.BYTES, is_hidden=True)
    status: str = column("ended")
    """Empty, `skipped`, `out of memory`, `no effect` or `much slower`."""
    fault: str = column("fault", is_hidden=True)


def summarize(trace: Trace) -> None:
    """Return nothing: only unprofiled steps count."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return a row for each arm, or none where arms share a process."""
    manifest = job.manifest
    if manifest is None or not manifest.apart:
        return Report("arms", (Table.of("arms", "Arms", ArmRow, ()),))
    table = Table.of("arms", "Arms", ArmRow, [_row(manifest, arm, job.processes) for arm in manifest.arms])
    note = sentences.COMPARED_BY_DIFF if len(table.rows) > 1 else ""
    return Report("arms", (table,), (replace(table.visible, title=sentences.ARMS, note=note),) if table.rows else ())


def _row(manifest: Manifest, arm: Arm, processes: Sequence[Processes]) -> ArmRow:
    timed = next((each for each in processes if each.arm == arm.name), None)
    step_ns = step_of(timed)
    samples = arm.samples_per_step or None
    return ArmRow(
        key=arm.name,
        arm=arm.name,
        num_processes=len(timed.median_ns) if timed else 0,
        num_steps=int(timed.num_steps.sum()) if timed else 0,
        batch_size=batch_of(manifest, arm),
        samples_per_step=samples,
        step_ns=round(step_ns) if step_ns else None,
        spread_ns=int(np.ptp(timed.median_ns)) if timed and len(timed.median_ns) > 1 else None,
        samples_per_second=samples * 1e9 / step_ns if samples and step_ns else None,
        peak_bytes=int(timed.peak_bytes.max()) if timed else None,
        state_bytes=arm.facts.get("state_bytes"),
        allocated_bytes=arm.facts.get("allocated_bytes"),
        reserved_bytes=arm.facts.get("reserved_bytes"),
        head_room_bytes=arm.facts.get("head_room_bytes"),
        status=arm.status,
        fault=arm.fault,
    )


def step_of(processes: Processes | None) -> float | None:
    """Return the median over its processes of an arm's median step, ns; None without a step."""
    return float(np.median(processes.median_ns)) if processes else None


def batch_of(manifest: Manifest, arm: Arm) -> int | None:
    """Return the batch size of one rank, from the parameter `batch_size`; None without one."""
    size = arm.varied.get("batch_size", manifest.parameters.get("batch_size"))
    return size if isinstance(size, int) else None
