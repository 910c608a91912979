"""How much of what the device could do does it do: MFU, and ops against their roofs?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceq.analysis._rank_rows import each_of
from traceq.analysis._roofs import against_roofs
from traceq.analysis._wording import more_rows, over_ranks, per_step
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.modelled_ops import ModelledOps, TimeKind, modelled_ops
from traceq.facts.roofline.peaks import Peaks, peaks_of
from traceq.facts.roofline.work import Kind
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.report import Finding, Report, Table, column
from traceq.units import Unit, format_value

POSITION = 69

_TOP = 8
_MIN_SHARE = 0.001
"""Part of a rank's modelled time from which calls of one shape are a row; the others are one row without shapes."""
_REACHED, _LARGE = 0.7, 0.1
"""Share of a roof that well-tuned kernels reach; part of a step from which time above that is worth a finding."""
COVERED_PCT = 90.0
"""Share of a rank's time without communication that has a model, below which FLOPs may be missing."""
_SMALL_FLOPS = 0.01
"""Part of the FLOPs that may have a dtype without a peak."""
_KINDS = {Kind.CONTRACTION: "FLOPs", Kind.BYTES: "bytes", Kind.ARGUMENTS: "arguments"}


@dataclass(frozen=True, slots=True)
class OpWork:
    """Calls of one op with one set of shapes, in one phase of one rank, over the whole trace.

    `flops` as executed, without masked pairs of attention; `model_flops` without what is computed twice; `full_flops`
    with masked pairs, as torch.utils.flop_counter counts. The last four are of the counted steps alone.
    """

    rank: int
    phase: str
    op: str
    shapes: str
    dtype: str
    model: str
    is_bound: bool
    num: int
    ns: int
    flops: int
    model_flops: int
    full_flops: int
    bytes: int
    step_ns: int
    step_flops: int
    step_model_flops: int
    step_bytes: int


@dataclass(frozen=True, slots=True)
class OpRow:
    """Calls of one op with one set of shapes against the roof of the device."""

    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    op: str = column("op")
    shapes: str = column("shapes")
    dtype: str = column("dtype")
    model: str = column("model")
    is_bound: bool = column("bound")
    num: int = column("num", Unit.COUNT)
    gpu_ns: int = column("GPU time", Unit.NS)
    flops: int = column("FLOPs", Unit.COUNT)
    model_flops: int = column("model FLOPs", Unit.COUNT)
    full_flops: int = column("full FLOPs", Unit.COUNT)
    bytes: int = column("bytes", Unit.BYTES)
    intensity: float | None = column("FLOP/B", Unit.NUMBER)
    tflops: float | None = column("TFLOP/s", Unit.NUMBER)
    gbps: float | None = column("GB/s", Unit.NUMBER)
    roof: str = column("roof")
    roof_pct: float | None = column("of roof", Unit.PERCENT)
    lost_ns: int | None = column("above roof", Unit.NS)
    doubt: str = column("no result")


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Device time of one rank by what is known of its work; the shares of a rank add up to 100 %."""

    rank: int = column("rank", Unit.COUNT)
    kind: str = column("work")
    gpu_ns: int = column("GPU time", Unit.NS)
    share_pct: float = column("share", Unit.PERCENT)


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank's counted steps: FLOPs of a mean step, and their share of what the device could do in its time."""

    rank: int = column("rank", Unit.COUNT)
    device: str = column("device")
    peak: str = column("peaks of")
    peak_source: str = column("source")
    window_ns: int = column("step", Unit.NS)
    model_flops: int = column("model FLOPs", Unit.COUNT)
    executed_flops: int = column("executed FLOPs", Unit.COUNT)
    mfu_pct: float | None = column("MFU", Unit.PERCENT)
    hfu_pct: float | None = column("HFU", Unit.PERCENT)
    is_bound: bool = column("at most")
    modelled_pct: float = column("modelled", Unit.PERCENT)


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's work, and ns by TimeKind."""

    rank: int
    rows: tuple[OpWork, ...]
    ns_of_kind: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sum:
    """Calls of one op in one phase, over all shapes and ranks."""

    op: str = column("op")
    phase: str = column("phase")
    dtype: str = column("dtype")
    num: int = column("num", Unit.COUNT)
    ns: int = column("time", Unit.NS)
    tflops: float | None = column("TFLOP/s", Unit.NUMBER)
    gbps: float | None = column("GB/s", Unit.NUMBER)
    roof: str = column("roof")
    roof_pct: float | None = column("of roof", Unit.PERCENT)
    lost_ns: int | None = column("above roof", Unit.NS)


def summarize(trace: Trace) -> RankPart:
    """Return the work of each op by phase and shapes, and what is known of the device's time."""
    ops = modelled_ops(trace)
    of_kind = np.zeros(len(TimeKind), np.int64)
    np.add.at(of_kind, ops.unit_kind, ops.unit_ns)
    return RankPart(trace.rank, tuple(_op_rows(trace, ops)), tuple(of_kind.tolist()))


def merge(job: Job, parts: Sequence[RankPart]) -> Report:
    """Return MFU of each rank, the ledger of its device time, and its ops against their roofs."""
    devices = {rank.rank: rank.device for rank in job.ranks}
    peaks = {rank: peaks_of(device) for rank, device in devices.items()}
    rows = each_of(parts, lambda part: tuple(_roofed(row, peaks[row.rank]) for row in part.rows))
    ranks = [_rank_row(job, part, peaks[part.rank], index) for index, part in enumerate(parts)]
    ledger = each_of(parts, _ledger)
    tables = (
        Table.of("efficiency", "Efficiency", RankRow, ranks),
        Table.of("efficiency_ledger", "What is known of the device's work", LedgerRow, ledger),
        Table.of("efficiency_ops", "Ops against their roofs", OpRow, rows),
    )
    has_device = any(rank.has_device for rank in job.ranks)
    if not any(part.rows for part in parts) or not (has_device or any(peaks.values())):
        return Report("efficiency", tables)
    findings = _findings(job, parts, peaks)
    return Report("efficiency", tables, _views(job, parts, peaks, ranks), findings)


# ---- one rank


def _op_rows(trace: Trace, ops: ModelledOps) -> list[OpWork]:
    if len(ops.row) == 0:
        return []
    events, works = trace.events, ops.works
    dtypes = ["tf32", *sorted({work.dtype for work in works})]
    dtype = np.array([dtypes.index(work.dtype, 1) for work in works], np.int64)[ops.work]
    is_float32 = np.array([work.dtype == "float32" and work.flops > 0 for work in works], np.bool_)[ops.work]
    dtype[ops.tf32 & is_float32] = 0
    phase, names = _phase_of(trace, ops)
    is_small = _is_small(trace, ops)
    shapes = np.where(is_small, -1, events.shapes[ops.row])
    kind = np.array([work.kind for work in works], np.int64)[ops.work]
    bound = np.array([work.is_bound for work in works], np.int64)[ops.work]
    groups = group([phase, events.name[ops.row], shapes, dtype, kind, bound])
    counted = _in_counted_steps(trace, ops)
    full, executed, model, moved = (
        np.array([getattr(work, name) for work in works], np.float64)[ops.work]
        for name in ("flops", "executed", "model", "bytes")
    )
    model[ops.repeats] = 0
    zero = np.zeros(len(groups.keys))

    def total(values: np.ndarray) -> list[int]:
        sums = zero.copy()
        np.add.at(sums, groups.group_ids, values)
        return [round(value) for value in sums.tolist()]

    numbers = zip(
        groups.keys.tolist(),
        groups.count(),
        groups.sum(ops.ns),
        total(executed),
        total(model),
        total(full),
        total(moved),
        total(np.where(counted, ops.ns, 0)),
        total(np.where(counted, executed, 0)),
        total(np.where(counted, model, 0)),
        total(np.where(counted, moved, 0)),
        strict=True,
    )
    rows = [
        OpWork(
            trace.rank,
            names[key[0]],
            events.strings[key[1]],
            "".join(events.strings[key[2]].split()) if key[2] >= 0 else "",
            dtypes[key[3]],
            _KINDS[Kind(key[4])],
            bool(key[5]),
            *sums,
        )
        for key, *sums in numbers
    ]
    return sorted(rows, key=lambda row: -row.ns)


def _phase_of(trace: Trace, ops: ModelledOps) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return (phase of each op, names of the phases)."""
    labels, events = phases(trace), trace.events
    if len(device_work(trace)):
        return labels.work_phase[ops.first], labels.names
    return labels.phase_at(tracks(trace)[ops.row], events.ts[ops.row]), labels.names


def _in_counted_steps(trace: Trace, ops: ModelledOps) -> np.ndarray:
    """Return which ops begin, on the device if there is one, in a counted step: bool[O]."""
    all_steps = steps(trace)
    start = trace.events.ts[ops.unit_row[ops.first]]
    return span_index(all_steps.window[all_steps.counted], start) >= 0


def _is_small(trace: Trace, ops: ModelledOps) -> np.ndarray:
    """Return which ops have shapes whose calls together take little time: bool[O]."""
    groups = group([trace.events.name[ops.row], trace.events.shapes[ops.row]])
    ns = np.array(groups.sum(ops.ns), np.int64)
    return np.asarray((ns < _MIN_SHARE * int(ops.ns.sum()))[groups.group_ids])


def _ledger(part: RankPart) -> tuple[LedgerRow, ...]:
    total_ns = sum(part.ns_of_kind)
    if not total_ns:
        return ()
    return tuple(
        LedgerRow(part.rank, kind.name.lower(), part.ns_of_kind[kind], 100 * part.ns_of_kind[kind] / total_ns)
        for kind in TimeKind
    )


def _roofed(row: OpWork, peaks: Peaks | None) -> OpRow:
    roofed = against_roofs(
        peaks, flops=row.flops, size_bytes=row.bytes, dtype=row.dtype, ns=row.ns, is_bound=row.is_bound
    )
    return OpRow(
        key=f"{row.phase}|{row.op}|{row.dtype}|{row.shapes}",
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
        tflops=_rate(row.flops, row.ns, 1e-3) if not _exceeds(roofed.roof, roofed.doubt, "compute") else None,
        gbps=_rate(row.bytes, row.ns, 1.0) if not _exceeds(roofed.roof, roofed.doubt, "memory") else None,
        roof=roofed.roof,
        roof_pct=roofed.share(row.ns),
        lost_ns=roofed.lost_ns(row.ns),
        doubt=roofed.doubt,
    )


def _exceeds(roof: str, doubt: str, kind: str) -> bool:
    return bool(doubt) and roof == kind


def _rate(amount: int, ns: int, per_ns: float) -> float | None:
    """Return an amount per ns in units of `1 / per_ns`; None for nothing, or no time."""
    return amount * per_ns / ns if amount and ns else None


# ---- MFU


def _utilisation(rows: Sequence[OpWork], peaks: Peaks | None, name: str) -> float | None:
    """Return the seconds that the FLOPs of the counted steps take at the peak of their dtype; None without a peak."""
    if peaks is None:
        return None
    flops: dict[str, int] = {}
    for row in rows:
        flops[row.dtype] = flops.get(row.dtype, 0) + int(getattr(row, name))
    unknown = sum(amount for dtype, amount in flops.items() if not peaks.rate(dtype))
    if not sum(flops.values()) or unknown > _SMALL_FLOPS * sum(flops.values()):
        return None
    return sum(amount / peaks.rate(dtype) for dtype, amount in flops.items() if peaks.rate(dtype))


def _rank_row(job: Job, part: RankPart, peaks: Peaks | None, index: int) -> RankRow:
    num_steps, window_ns = _counted(job, index)
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


def _counted(job: Job, index: int) -> tuple[int, int]:
    """Return (number of counted steps of a rank, their length together)."""
    all_steps = job.ranks[index].steps
    counted = all_steps.window[all_steps.counted]
    return max(len(counted), 1), int((counted[:, 1] - counted[:, 0]).sum())


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


def _sums(parts: Sequence[RankPart], peaks: dict[int, Peaks | None]) -> list[_Sum]:
    """Return ops by phase, those that lose most first; without peaks those that take longest."""
    by_op: dict[tuple[str, str, str], list[OpWork]] = {}
    for part in parts:
        for row in part.rows:
            by_op.setdefault((row.op, row.phase, row.dtype), []).append(row)
    sums = [_sum(key, rows, peaks) for key, rows in by_op.items()]
    return sorted(sums, key=lambda each: (-(each.lost_ns or 0), -each.ns))


def _sum(key: tuple[str, str, str], rows: Sequence[OpWork], peaks: dict[int, Peaks | None]) -> _Sum:
    roofed = [
        against_roofs(
            peaks[row.rank],
            flops=row.flops,
            size_bytes=row.bytes,
            dtype=row.dtype,
            ns=row.ns,
            is_bound=row.is_bound,
        )
        for row in rows
    ]
    pairs = [(row, each) for row, each in zip(rows, roofed, strict=True) if each.roof and not each.doubt]
    ns, sure_ns = sum(row.ns for row in rows), sum(row.ns for row, _ in pairs)
    by_roof = {kind: sum(each.least_ns for each in roofed if each.roof == kind) for kind in ("compute", "memory")}
    is_sure = 2 * sure_ns > ns
    shown = [row for row, _ in pairs] if is_sure else list(rows) if not any(by_roof.values()) else []
    shown_ns = sum(row.ns for row in shown)
    return _Sum(
        *key,
        num=sum(row.num for row in rows),
        ns=ns,
        tflops=_rate(sum(row.flops for row in shown), shown_ns, 1e-3),
        gbps=_rate(sum(row.bytes for row in shown), shown_ns, 1.0),
        roof=max(by_roof, key=lambda kind: by_roof[kind]) if any(by_roof.values()) else "",
        roof_pct=100 * sum(each.least_ns for _, each in pairs) / sure_ns if is_sure else None,
        lost_ns=sum(each.lost_ns(row.ns) or 0 for row, each in pairs) if is_sure else None,
    )


def _views(
    job: Job, parts: Sequence[RankPart], peaks: dict[int, Peaks | None], ranks: Sequence[RankRow]
) -> tuple[Table, ...]:
    sums = _sums(parts, peaks)
    title = f"{_headline(parts, peaks, ranks)} ({over_ranks(job)})"
    note = " ".join(filter(None, [_coverage(parts), _attention(ranks), more_rows(len(sums) - _TOP)]))
    return (Table.of("efficiency", title, _Sum, sums[:_TOP], note=note),)


def _headline(parts: Sequence[RankPart], peaks: dict[int, Peaks | None], ranks: Sequence[RankRow]) -> str:
    """Return `MFU 23.1 %, HFU 30.0 % of H100 SXM: bfloat16 989 TFLOP/s, 3,350 GB/s`."""
    first = next(filter(None, peaks.values()), None)
    if first is None:
        return "Work of ops; no peaks are known for this device (--peak)"
    mfu, hfu = _job_share(ranks, "mfu_pct"), _job_share(ranks, "hfu_pct")
    flops: dict[str, int] = {}
    for part in parts:
        for row in part.rows:
            flops[row.dtype] = flops.get(row.dtype, 0) + row.flops
    main = max(flops, key=lambda dtype: flops[dtype])
    rates = f"{main} {format_value(first.rate(main) / 1e12, Unit.NUMBER)} TFLOP/s, " if first.rate(main) else ""
    device = f"{first.name}: {rates}{format_value(first.bandwidth / 1e9, Unit.NUMBER)} GB/s"
    if mfu is None or hfu is None:
        return f"Ops against the roofs of {device}"
    is_bound, is_partial = any(rank.is_bound for rank in ranks), any(rank.modelled_pct < COVERED_PCT for rank in ranks)
    most = "about " if is_bound and is_partial else "at most " if is_bound else "at least " if is_partial else ""
    again = f", HFU {format_value(hfu, Unit.PERCENT)}" if hfu - mfu >= 0.05 else ""
    return f"MFU {most}{format_value(mfu, Unit.PERCENT)}{again} of {device}"


def _coverage(parts: Sequence[RankPart]) -> str:
    """Return what of the device's time the models cover, and the largest part that they do not."""
    ns = [sum(part.ns_of_kind[kind] for part in parts) for kind in TimeKind]
    total_ns = sum(ns) or 1
    words = {
        TimeKind.NO_MODEL: "has ops without a model",
        TimeKind.NO_SHAPE: "has ops without shapes",
        TimeKind.NO_OP: "was launched by no recorded op",
        TimeKind.COMMUNICATION: "is communication",
        TimeKind.COPY: "is copies and memsets",
    }
    modelled = format_value(100 * ns[TimeKind.MODELLED] / total_ns, Unit.PERCENT)
    rest = [
        f"{format_value(100 * ns[kind] / total_ns, Unit.PERCENT)} {words[kind]}"
        for kind in sorted(words, key=lambda kind: -ns[kind])
        if ns[kind] >= _MIN_SHARE * total_ns
    ]
    return f"{modelled} of the time is modelled; {', '.join(rest)}." if rest else f"{modelled} of the time is modelled."


def _attention(ranks: Sequence[RankRow]) -> str:
    """Return how attention counts, where FLOPs count at all."""
    return "Attention counts unmasked pairs." if any(rank.model_flops for rank in ranks) else ""


# ---- findings


def _findings(job: Job, parts: Sequence[RankPart], peaks: dict[int, Peaks | None]) -> tuple[Finding, ...]:
    """Return the op that would gain most if it came as close to its roof as well-tuned kernels do."""
    findings: list[Finding] = []
    for index, part in enumerate(parts):
        num_steps, window_ns = _counted(job, index)
        by_op: dict[tuple[str, str, str], list[OpWork]] = {}
        for row in part.rows:
            if row.model != _KINDS[Kind.ARGUMENTS] and not row.is_bound and row.step_ns:
                by_op.setdefault((row.op, row.phase, row.dtype), []).append(row)
        for key, rows in by_op.items():
            rank_peaks = peaks[part.rank]
            gain_ns = sum(_gain_ns(row, rank_peaks) for row in rows)
            if rank_peaks is not None and gain_ns >= _LARGE * window_ns > 0:
                text = _sentence(job, key, rows, rank_peaks, num_steps, gain_ns)
                findings.append(Finding("below_roof", "medium", text, round(gain_ns / num_steps)))
    return tuple(sorted(findings, key=lambda finding: -finding.ns)[:1])


def _target(row: OpWork, peaks: Peaks) -> str:
    """Return the dtype in which a call could multiply: TF32 instead of float32, where the device has it."""
    is_slower = row.dtype == "float32" and row.step_flops and peaks.rate("tf32") > peaks.rate("float32")
    return "tf32" if is_slower else row.dtype


def _gain_ns(row: OpWork, peaks: Peaks | None) -> float:
    """Return by how much the calls of the counted steps exceed the time at `_REACHED` of the roof they could have."""
    if peaks is None:
        return 0.0
    amounts: dict[str, Any] = {"flops": row.step_flops, "size_bytes": row.step_bytes, "ns": row.step_ns}
    if against_roofs(peaks, dtype=row.dtype, **amounts).doubt:
        return 0.0
    roofed = against_roofs(peaks, dtype=_target(row, peaks), **amounts)
    return max(row.step_ns - roofed.least_ns / _REACHED, 0.0) if roofed.roof else 0.0


def _sentence(
    job: Job, key: tuple[str, str, str], rows: Sequence[OpWork], peaks: Peaks, num_steps: int, gain_ns: float
) -> str:
    """Return what an op reaches of its roof, and how long it would take at `_REACHED` of the roof it could have."""
    op, phase, dtype = key
    ns = sum(row.step_ns for row in rows)
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
    least = format_value((ns - gain_ns) / num_steps, Unit.NS)
    if any(_target(row, peaks) != dtype for row in rows):
        peak = peaks.rate("tf32") * 1e-12
        return (
            f"{text}; in TF32, which has {format_value(peak, Unit.NUMBER)} TFLOP/s, about {least}: "
            "torch.set_float32_matmul_precision('high'), if that precision is enough"
        )
    return f"{text}; at {100 * _REACHED:.0f} %, which well-tuned kernels reach, it would take {least}"
