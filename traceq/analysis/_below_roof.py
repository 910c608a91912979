"""The op that would gain most if it came as close to its roof as well-tuned kernels do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import holds_in_steps, step_lengths
from traceq.analysis._roofs import against_roofs
from traceq.analysis._wording import per_step
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.op_work import OpWork, RankWork
from traceq.facts.roofline.peaks import Peaks
from traceq.report import Finding
from traceq.units import Unit, format_value

__all__ = ["below_roof", "counted_steps"]

_LARGE = 0.1
"""Part of a step from which time above what well-tuned kernels reach is worth a finding."""


def counted_steps(job: Job, index: int) -> tuple[int, int]:
    """Return (number of counted steps of a rank, their length together in ns)."""
    ns = step_lengths(job.ranks[index].steps)
    return max(len(ns), 1), int(ns.sum())


def below_roof(job: Job, parts: Sequence[RankWork], peaks: Mapping[int, Peaks | None]) -> tuple[Finding, ...]:
    """Return the op that would gain most if it came as close to its roof as well-tuned kernels do, in most steps."""
    worst: list[Finding | None] = []
    for index, part in enumerate(parts):
        findings: list[Finding] = []
        step_ns = step_lengths(job.ranks[index].steps)
        by_op: dict[tuple[str, str, str], list[OpWork]] = {}
        for row in part.rows:
            if not row.unsure and row.step_ns:
                by_op.setdefault((row.op, row.phase, row.dtype), []).append(row)
        for key, rows in by_op.items():
            rank_peaks = peaks[part.rank]
            if rank_peaks is None:
                continue
            gain_ns = np.sum([_gain_ns(row, rank_peaks) for row in rows], axis=0)
            if gain_ns.sum() >= _LARGE * step_ns.sum() > 0 and holds_in_steps(gain_ns, step_ns, 100 * _LARGE):
                text = _sentence(job, key, rows, rank_peaks, len(step_ns), float(gain_ns.sum()))
                row_key = max(rows, key=lambda row: row.step_ns).key
                findings.append(Finding("below_roof", "medium", text, round(float(gain_ns.mean())), row_key))
        worst.append(max(findings, key=lambda finding: finding.ns, default=None))
    return on_the_worst_rank(job, worst)


def _target(row: OpWork, peaks: Peaks) -> str:
    """Return the dtype in which a call could multiply: TF32 instead of float32, where the device has it."""
    is_slower = row.dtype == "float32" and row.step_flops and peaks.rate("tf32") > peaks.rate("float32")
    return "tf32" if is_slower else row.dtype


def _gain_ns(row: OpWork, peaks: Peaks) -> NDArray[np.float64]:
    """float64[K]: by how much the calls of each counted step exceed the time at what is reachable of the roof.

    0 where those of all steps together do not. Time for which the device did something else is none of theirs.
    """
    in_dtype = partial(against_roofs, peaks, flops=row.step_flops, size_bytes=row.step_bytes, ns=row.own_step_ns)
    target = _target(row, peaks)
    roofed = in_dtype(dtype=target)
    reachable = peaks.reachable(roofed.roof)
    if in_dtype(dtype=row.dtype).doubt or not roofed.roof or row.own_step_ns <= roofed.least_ns / reachable:
        return np.zeros(len(row.steps_ns))
    least_ns = [
        against_roofs(peaks, flops=flops, size_bytes=moved, dtype=target, ns=ns).least_ns
        for ns, flops, moved in zip(row.own_steps_ns, row.steps_flops, row.steps_bytes, strict=True)
    ]
    gain_ns: NDArray[np.float64] = np.array(row.own_steps_ns) - np.array(least_ns) / reachable
    return gain_ns


def _sentence(
    job: Job, key: tuple[str, str, str], rows: Sequence[OpWork], peaks: Peaks, num_steps: int, gain_ns: float
) -> str:
    """Return what an op reaches of its roof, and how long it would take at what is reachable of it."""
    op, phase, dtype = key
    ns = sum(row.own_step_ns for row in rows)
    flops, moved = sum(row.step_flops for row in rows), sum(row.step_bytes for row in rows)
    roofed = against_roofs(peaks, flops=flops, size_bytes=moved, dtype=dtype, ns=ns)
    share = format_value(100 * roofed.least_ns / ns, Unit.PERCENT)
    if roofed.roof == "compute":
        rate, peak = flops / ns * 1e-3, peaks.rate(dtype) * 1e-12
        of_peak = f"{format_value(rate, Unit.NUMBER)} of {format_value(peak, Unit.NUMBER)} TFLOP/s in {dtype}"
    else:
        rate, peak = moved / ns, peaks.bandwidth * 1e-9
        of_peak = f"{format_value(rate, Unit.NUMBER)} of {format_value(peak, Unit.NUMBER)} GB/s"
    takes = format_value(ns / num_steps, Unit.NS)
    text = f"{op} in {phase} reaches {share} of its {roofed.roof} roof ({of_peak})"
    text = f"{text} and takes {takes} {per_step(job.ranks[0].steps)}"
    least, gain = (format_value(each / num_steps, Unit.NS) for each in (ns - gain_ns, gain_ns))
    if any(_target(row, peaks) != dtype for row in rows):
        peak = peaks.rate("tf32") * 1e-12
        return (
            f"{text}; in TF32, which has {format_value(peak, Unit.NUMBER)} TFLOP/s, about {least}, {gain} less: "
            "torch.set_float32_matmul_precision('high'), if that precision is enough"
        )
    reachable = f"{100 * peaks.reachable(roofed.roof):.0f} %, which well-tuned kernels reach"
    return f"{text}; at {reachable}, it would take {least}, {gain} less"
