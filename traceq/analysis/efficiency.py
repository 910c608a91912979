"""How much of what the device could do does it do: MFU, and ops against their roofs?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import holds_in_steps, on_the_worst_rank
from traceq.analysis._below_roof import (
    OpSum,
    against,
    below_roof,
    counted_steps,
    op_sums,
    own_roofs,
    rate,
    without_rates,
)
from traceq.analysis._rank_rows import each_of
from traceq.analysis._wording import more_rows, over_ranks
from traceq.claims.claim import AT_MOST, Claim, Subject, measured
from traceq.claims.limits import LARGE, NOTHING
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.modelled_ops import TimeKind
from traceq.facts.roofline.op_work import OpWork, RankWork, rank_work
from traceq.facts.roofline.peaks import Peaks, peaks_of, unsure_cpu_peaks
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

_TOP = 8
COVERED_PCT = 90.0
"""Share of a rank's time without communication that has a model, below which FLOPs may be missing."""
_MATERIAL, _MUCH = 0.05, 0.1
"""Part of the FLOPs that may be a bound where others are missing; from which the peak of a dtype is named."""
_SOFTMAX, _PRODUCTS = ("aten::_softmax", "aten::_safe_softmax"), {"aten::bmm": 0, "aten::baddbmm": 1}
"""Names of softmax ops; products of batches of matrices, with the position of their first factor."""
_ON_SCORES, _BESIDE = (
    tuple(f"aten::{name}" for name in ("mul", "div", "add", "masked_fill", "mul_", "div_", "add_", "copy_")),
    3,
)
"""Ops that scale, mask or cast scores, which a fused kernel does on the way; and their role in `_roles`."""
Scores = tuple[str, int, int, int]
"""(phase, batch, rows, columns) of a batch of matrices."""


@frozen
class OpRow:
    """Calls of one op with one set of shapes against its roof.

    Calls that only move bytes and take less than 0.1 % together are one row per op and phase.
    """

    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    op: str = column("op")
    shapes: str = column("shapes")
    dtype: str = column("dtype")
    """Of operands; `tf32` for float32 that the kernel rounds."""
    model: str = column("model")
    """`FLOPs`, `bytes`, or `arguments`: nothing else is known."""
    is_bound: bool = column("bound")
    """At most so many FLOPs."""
    num: int = column("num", Unit.COUNT)
    gpu_ns: int = column("GPU time", Unit.NS)
    flops: int = column("FLOPs", Unit.COUNT)
    """Executed, without masked pairs of attention."""
    model_flops: int = column("model FLOPs", Unit.COUNT)
    """Without what is computed twice."""
    full_flops: int = column("full FLOPs", Unit.COUNT)
    """With masked pairs, as torch.utils.flop_counter counts."""
    bytes: int = column("bytes", Unit.BYTES)
    """Compulsory: each element read or written once."""
    intensity: float | None = column("FLOP/B", Unit.NUMBER)
    """FLOP/B."""
    tflops: float | None = column("TFLOP/s", Unit.NUMBER)
    """10^12 FLOP/s; None for a bound, or above its roof."""
    gbps: float | None = column("GB/s", Unit.NUMBER)
    """Of `bytes`."""
    roof: str = column("roof")
    """`compute` or `memory`; "" without peaks."""
    roof_pct: float | None = column("of roof", Unit.PERCENT)
    lost_ns: int | None = column("above roof", Unit.NS)
    """Above its roof."""
    doubt: str = column("no result")
    """Why there is no result."""


@frozen
class LedgerRow:
    """Device time by what is known of its work."""

    rank: int = column("rank", Unit.COUNT)
    kind: str = column("work")
    """`modelled`, `arguments` (only these are known), `no_model`, `no_shape`, `no_op`, `communication`, `copy`."""
    gpu_ns: int = column("GPU time", Unit.NS)
    """Without a device self time of ops."""
    share_pct: float = column("share", Unit.PERCENT)


@frozen
class RankRow:
    """FLOPs of a mean counted step, without communication, and their share of the device's peak."""

    rank: int = column("rank", Unit.COUNT)
    device: str = column("device")
    peak: str = column("peaks of")
    peak_source: str = column("source")
    window_ns: int = column("step", Unit.NS)
    model_flops: int = column("model FLOPs", Unit.COUNT)
    """Of contractions that the model needs."""
    executed_flops: int = column("executed FLOPs", Unit.COUNT)
    """With those computed twice."""
    mfu_pct: float | None = column("MFU", Unit.PERCENT)
    """`model_flops` at the peak, of the step."""
    hfu_pct: float | None = column("HFU", Unit.PERCENT)
    is_bound: bool = column("at most")
    """Some lengths were not recorded."""
    modelled_pct: float = column("modelled", Unit.PERCENT)


def summarize(trace: Trace) -> RankWork:
    """Return the work of each op by phase and shapes, and what is known of the device's time."""
    return rank_work(trace)


def merge(job: Job, parts: Sequence[RankWork]) -> Report:
    """Return MFU of each rank, the ledger of its device time, and its ops against their roofs."""
    devices = {rank.rank: rank.device for rank in job.ranks}
    measured = job.manifest.facts_for(job.arm) if job.manifest is not None else None
    peaks = {rank: peaks_of(device, measured) for rank, device in devices.items()}
    rows = each_of(parts, lambda part: tuple(_roofed(row, peaks[row.rank]) for row in part.rows))
    ranks = [_rank_row(job, part, peaks[part.rank], index) for index, part in enumerate(parts)]
    ledger = each_of(parts, _ledger)
    tables = (
        Table.of("efficiency", "Efficiency", RankRow, ranks),
        Table.of("efficiency_ledger", sentences.LEDGER, LedgerRow, ledger),
        Table.of("efficiency_ops", "Ops against their roofs", OpRow, rows),
    )
    has_device = any(rank.has_device for rank in job.ranks)
    if not any(part.rows for part in parts):
        return Report("efficiency", tables)
    if not has_device and not any(peaks.values()):
        unsure = unsure_cpu_peaks(measured) if measured is not None else ""
        return Report("efficiency", tables, (_without_peaks(unsure),) if unsure else ())
    views = _views(job, parts, peaks, ranks)
    if not has_device:
        return Report("efficiency", tables, views)
    below = below_roof(job, parts, peaks)
    claims = *below, *unfused_attention(job, parts, [claim.key for claim in below])
    return Report("efficiency", tables, views, claims)


def _ledger(part: RankWork) -> tuple[LedgerRow, ...]:
    total_ns = sum(part.ns_of_kind)
    if not total_ns:
        return ()
    return tuple(
        LedgerRow(part.rank, kind.name.lower(), part.ns_of_kind[kind], 100 * part.ns_of_kind[kind] / total_ns)
        for kind in TimeKind
    )


def _roofed(row: OpWork, peaks: Peaks | None) -> OpRow:
    roofed = against(row, peaks)
    is_fast = roofed.doubt and not row.unsure
    return OpRow(
        key=row.key,
        rank=row.rank,
        phase=row.phase,
        op=row.op,
        shapes=row.shapes,
        dtype=row.dtype,
        model=row.model,
        is_bound=row.is_bound,
        num=row.num,
        gpu_ns=row.ns,
        flops=row.flops,
        model_flops=row.model_flops,
        full_flops=row.full_flops,
        bytes=row.bytes,
        intensity=row.flops / row.bytes if row.flops and row.bytes else None,
        tflops=rate(row.flops, row.ns, 1e-3) if not row.unsure and not (is_fast and roofed.roof == "compute") else None,
        gbps=rate(row.bytes, row.ns, 1.0) if not row.unsure and not (is_fast and roofed.roof == "memory") else None,
        roof=roofed.roof,
        roof_pct=roofed.share(row.ns),
        lost_ns=roofed.lost_ns(row.ns),
        doubt=roofed.doubt,
    )


# ---- MFU


def _utilisation(rows: Sequence[OpWork], peaks: Peaks | None, name: str) -> float | None:
    """Return the seconds that the FLOPs of the counted steps take at peak speed; None without FLOPs or peaks."""
    if peaks is None:
        return None
    flops: dict[str, float] = {}
    for row in rows:
        flops[row.dtype] = flops.get(row.dtype, 0.0) + _flops(row, peaks, name)
    return peaks.seconds(flops) or None


def _flops(row: OpWork, peaks: Peaks, name: str) -> float:
    """Return FLOPs of the counted steps; of a bound no more than the device can do in the time of the calls."""
    amount, peak = float(getattr(row, name)), peaks.rate(row.dtype)
    return min(amount, peak * row.step_ns * 1e-9) if row.is_bound and peak else amount


def _rank_row(job: Job, part: RankWork, peaks: Peaks | None, index: int) -> RankRow:
    num_steps, window_ns = counted_steps(job, index)
    used = [_utilisation(part.rows, peaks, name) for name in ("step_model_flops", "step_flops")]
    mfu, hfu = (None if seconds is None or not window_ns else 100 * seconds * 1e9 / window_ns for seconds in used)
    total_ns = sum(part.ns_of_kind) - part.ns_of_kind[TimeKind.COMMUNICATION]
    is_over = hfu is not None and hfu > 100
    return RankRow(
        rank=part.rank,
        device=job.ranks[index].device,
        peak=peaks.name if peaks else "",
        peak_source=peaks.source if peaks else "",
        window_ns=round(window_ns / num_steps),
        model_flops=round(sum(row.step_model_flops for row in part.rows) / num_steps),
        executed_flops=round(sum(row.step_flops for row in part.rows) / num_steps),
        mfu_pct=None if is_over else mfu,
        hfu_pct=None if is_over else hfu,
        is_bound=any(row.is_bound and row.step_flops for row in part.rows),
        modelled_pct=100 * part.ns_of_kind[TimeKind.MODELLED] / total_ns if total_ns else 0.0,
    )


def _job_share(ranks: Sequence[RankRow], name: str) -> float | None:
    """Return MFU or HFU of the job: what all ranks did, over what they could have done in the slowest one's step."""
    shares = [getattr(rank, name) for rank in ranks]
    slowest_ns = max(rank.window_ns for rank in ranks)
    if not slowest_ns or any(share is None for share in shares):
        return None
    return sum(float(share) * rank.window_ns for share, rank in zip(shares, ranks, strict=True)) / (
        len(ranks) * slowest_ns
    )


# ---- what people see


def _without_peaks(unsure: str) -> Table:
    """Return why a CPU has no MFU."""
    return Table.of("efficiency", "MFU unknown", OpSum, (), note=sentences.UNSURE_PEAKS.format(unsure=unsure))


def _views(
    job: Job, parts: Sequence[RankWork], peaks: dict[int, Peaks | None], ranks: Sequence[RankRow]
) -> tuple[Table, ...]:
    sums = op_sums(parts, peaks)
    title = _headline(job, parts, peaks, ranks)
    shown = sums[:_TOP]
    notes = [
        _coverage(parts),
        own_roofs(shown, parts, peaks),
        without_rates(shown, parts),
        more_rows(len(sums) - _TOP),
    ]
    return (Table.of("efficiency", title, OpSum, shown, note=" ".join(filter(None, notes))),)


def _headline(job: Job, parts: Sequence[RankWork], peaks: dict[int, Peaks | None], ranks: Sequence[RankRow]) -> str:
    """Return `MFU 23.1 %, HFU 30.0 % (3 counted steps, mean of 8 ranks) of H100 SXM: bfloat16 989 TFLOP/s, 3,350 GB/s`.

    What follows the semicolon is what the rows are of, which is not what MFU is of.
    """
    first = next(filter(None, peaks.values()), None)
    if first is None:
        return sentences.NO_PEAKS.format(of=over_ranks(job))
    mfu, hfu = _job_share(ranks, "mfu_pct"), _job_share(ranks, "hfu_pct")
    memory = [f"{format_value(first.bandwidth / 1e9, Unit.NUMBER)} GB/s"] if first.bandwidth else []
    rates = [*_compute_peaks(parts, first), *memory]
    device = f"{first.name}: {', '.join(rates)}"
    if mfu is None or hfu is None:
        return sentences.NO_MFU.format(device=device, of=over_ranks(job))
    is_bound, is_partial = any(rank.is_bound for rank in ranks), any(rank.modelled_pct < COVERED_PCT for rank in ranks)
    if is_partial and _bound_share(parts, peaks) > _MATERIAL:
        return sentences.MFU_UNKNOWN.format(modelled=_modelled(parts), device=device, of=over_ranks(job))
    most = "about " if is_bound and is_partial else "at most " if is_bound else "at least " if is_partial else ""
    again, share = f", HFU {format_value(hfu, Unit.PERCENT)}" * (hfu - mfu >= 0.05), format_value(mfu, Unit.PERCENT)
    return sentences.MFU.format(
        most=most, mfu=share, hfu=again, counted=_counted(job), device=device, of=over_ranks(job)
    )


def _counted(job: Job) -> str:
    """Return `3 counted steps, mean of 8 ranks`: what MFU is of."""
    if not job.ranks[0].steps.marked:
        steps = "whole trace"
    else:
        num = min(counted_steps(job, index)[0] for index in range(len(job.ranks)))
        steps = f"{num:,} counted steps" if num > 1 else "1 counted step"
    return f"{steps}, mean of {len(job.ranks)} ranks" if len(job.ranks) > 1 else steps


def _compute_peaks(parts: Sequence[RankWork], peaks: Peaks) -> list[str]:
    """Return `bfloat16 989.4 TFLOP/s` for each dtype with a peak that has much of the FLOPs, that with most first."""
    flops: dict[str, int] = {}
    for part in parts:
        for row in part.rows:
            flops[row.dtype] = flops.get(row.dtype, 0) + row.model_flops
    least = _MUCH * sum(flops.values())
    dtypes = [dtype for dtype in sorted(flops, key=lambda dtype: -flops[dtype]) if flops[dtype] >= max(least, 1)]
    return [
        f"{dtype} {format_value(peaks.rate(dtype) / 1e12, Unit.NUMBER)} TFLOP/s"
        for dtype in dtypes
        if peaks.rate(dtype)
    ]


def _bound_share(parts: Sequence[RankWork], peaks: dict[int, Peaks | None]) -> float:
    """Return which part of the FLOPs of the counted steps is an upper bound."""
    flops = [
        (row.is_bound, _flops(row, rank_peaks, "step_model_flops"))
        for part in parts
        if (rank_peaks := peaks[part.rank]) is not None
        for row in part.rows
    ]
    total = sum(amount for _, amount in flops)
    return sum(amount for is_bound, amount in flops if is_bound) / total if total else 0.0


def _modelled(parts: Sequence[RankWork]) -> str:
    """Return `53.0 % of the time is modelled`."""
    total_ns = sum(sum(part.ns_of_kind) for part in parts) or 1
    modelled_ns = sum(part.ns_of_kind[TimeKind.MODELLED] for part in parts)
    return sentences.MODELLED.format(share=format_value(100 * modelled_ns / total_ns, Unit.PERCENT))


def _coverage(parts: Sequence[RankWork]) -> str:
    """Return what of the device's time the models cover, and the largest part that they do not."""
    ns = [sum(part.ns_of_kind[kind] for part in parts) for kind in TimeKind]
    total_ns = sum(ns) or 1
    rest = [
        f"{format_value(100 * ns[kind] / total_ns, Unit.PERCENT)} {sentences.NOT_MODELLED[kind.name.lower()]}"
        for kind in sorted(TimeKind, key=lambda kind: -ns[kind])
        if kind != TimeKind.MODELLED and ns[kind] >= NOTHING * total_ns
    ]
    return f"{'; '.join(filter(None, [_modelled(parts), ', '.join(rest)]))}."


def unfused_attention(job: Job, parts: Sequence[RankWork], below_roof: Sequence[str] = ()) -> tuple[Claim, ...]:
    """Return the scores that products and a softmax of the same shape take most time for, on the rank where it is most.

    As many products have to give such scores, and to multiply them, as softmaxes take them in the phase, in most steps;
    a fused kernel also scales, masks and casts them. It explains a claim on an op below its roof whose key, in
    `below_roof`, is that of one of these: its time is part of theirs.
    """
    worst: list[Claim | None] = []
    for part in parts:
        claims: list[Claim] = []
        step_ns = part.base.ns
        rows_of_scores: dict[Scores, list[list[OpWork]]] = defaultdict(lambda: [[], [], [], []])
        for row in part.rows:
            for role, scores in _roles(row):
                rows_of_scores[scores][role].append(row)
        of_shape: dict[tuple[int, ...], list[tuple[str, list[list[OpWork]]]]] = defaultdict(list)
        for (phase, *sizes), rows_of_role in rows_of_scores.items():
            numbers = {sum(row.num for row in rows) for rows in rows_of_role[:_BESIDE]}
            if len(numbers) == 1 and 0 not in numbers:
                of_shape[tuple(sizes)].append((phase, rows_of_role))
        for shape, of_phases in of_shape.items():
            rows = [row for _, rows_of_role in of_phases for of_role in rows_of_role for row in of_role]
            ns: NDArray[np.float64] = np.array([row.steps_ns for row in rows], np.float64).sum(axis=0)
            if ns.sum() >= LARGE * step_ns.sum() > 0 and holds_in_steps(ns, step_ns, 100 * LARGE):
                keys, mean_ns = {row.key for row in rows}, round(float(ns.mean()))
                measures = measured(
                    ops=", ".join(of_role[0].op for of_role in of_phases[0][1] if of_role),
                    scores=" x ".join(f"{number:,}" for number in shape),
                    takes_ns=mean_ns,
                    share_pct=100 * float(ns.sum() / step_ns.sum()),
                    share_of=part.base.share_of,
                )
                phases = " and ".join(phase for phase, _ in of_phases)
                subject = Subject(phase=phases, key=min(keys.intersection(below_roof) or keys))
                claims.append(Claim("unfused_attention", mean_ns, subject, measures, (0, mean_ns), AT_MOST))
        worst.append(max(claims, key=lambda claim: claim.ns, default=None))
    return on_the_worst_rank(job, worst)


def _roles(row: OpWork) -> list[tuple[int, Scores]]:
    """Return (0, the scores that a product gives), (1, those that a softmax takes), (2, those that a product takes).

    (_BESIDE, those that an op scales, masks or casts), which does so to other tensors, too.
    """
    first = _PRODUCTS.get(row.op, 0)
    if not row.shapes or row.op not in (*_SOFTMAX, *_PRODUCTS, *_ON_SCORES):
        return []
    shapes = json.loads(row.shapes)[first : first + 2]
    if row.op not in _PRODUCTS:
        *batch, rows, columns = shapes[0] if len(shapes[0]) > 2 else (0, 0, 0)
        return [(1 if row.op in _SOFTMAX else _BESIDE, (row.phase, prod(batch), rows, columns))]
    if [len(shape) for shape in shapes] != [3, 3]:  # a trace may hold any shapes
        return []
    (batch, rows, inner), (_, _, columns) = shapes
    if inner == columns:  # cannot tell scores from what they multiply
        return []
    return [(0, (row.phase, batch, rows, columns)), (2, (row.phase, batch, rows, inner))]
