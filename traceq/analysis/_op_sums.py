"""Work against the roofs of a device: sums of ops over all shapes and ranks, and what their rows leave out."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.claims.limits import NOTHING
from traceq.facts.roofline.op_work import OpWork, RankWork
from traceq.facts.roofline.peaks import Peaks
from traceq.frozen import frozen
from traceq.report import column
from traceq.units import Unit


@frozen
class Roofed:
    """Work against its roofs.

    `roof`: `compute` or `memory`, the one that binds; "" where the peaks do not tell. `least_ns` that the work takes at
    that roof. `doubt`: why the work exceeds its roof or is not known, which is no result; "" otherwise.
    """

    roof: str
    least_ns: float
    doubt: str = ""

    def share(self, ns: int) -> float | None:
        """Return the share of the roof that is reached in so many ns, in percent; None where there is no result."""
        return 100 * self.least_ns / ns if self.roof and not self.doubt and ns else None

    def lost_ns(self, ns: int) -> int | None:
        """Return the time above the roof; None where there is no result."""
        return round(max(ns - self.least_ns, 0)) if self.roof and not self.doubt else None


def against_roofs(peaks: Peaks | None, *, flops: int, size_bytes: int, dtype: str, ns: int, unsure: str = "") -> Roofed:
    """Return which roof binds work that took `ns`; `unsure`: why so much work may not be what was done.

    Work above its roof has a doubt instead of a share: what is small is in a cache, not in memory; else the model or
    the peak is wrong.
    """
    if peaks is None or (flops and not peaks.rate(dtype)) or not peaks.bandwidth:
        return Roofed("", 0.0)
    compute_ns = flops / (peaks.rate(dtype) * 1e-9) if flops else 0.0
    memory_ns = size_bytes / (peaks.bandwidth * 1e-9)
    roof, least_ns = ("compute", compute_ns) if compute_ns > memory_ns else ("memory", memory_ns)
    if unsure or least_ns <= ns:
        return Roofed(roof, least_ns, unsure)
    return Roofed(roof, least_ns, "in cache, or a bound" if roof == "memory" else "model or peak is wrong")


@frozen
class OpSum:
    """Calls of one op in one phase, over all shapes and ranks."""

    op: str = column("op")
    phase: str = column("phase")
    dtype: str = column("dtype")
    num: int = column("num", Unit.COUNT)
    gpu_ns: int = column("time", Unit.NS)
    tflops: float | None = column("TFLOP/s", Unit.NUMBER)
    gbps: float | None = column("GB/s", Unit.NUMBER)
    roof: str = column("roof")
    roof_pct: float | None = column("of roof", Unit.PERCENT)
    lost_ns: int | None = column("above roof", Unit.NS)


def op_sums(parts: Sequence[RankWork], peaks: dict[int, Peaks | None]) -> list[OpSum]:
    """Return ops by phase, those that lose most first; without peaks those that take longest."""
    by_op: dict[tuple[str, str, str, bool], list[OpWork]] = {}
    for part in parts:
        for row in part.rows:
            by_op.setdefault((row.op, row.phase, row.dtype, bool(row.unsure)), []).append(row)
    sums = [
        _unsure_sum(key, rows) if is_unsure else _sum(key, rows, peaks) for (*key, is_unsure), rows in by_op.items()
    ]
    return sorted(sums, key=lambda each: (-(each.lost_ns or 0), -each.gpu_ns))


def _unsure_sum(key: Sequence[str], rows: Sequence[OpWork]) -> OpSum:
    """Return calls whose work may not be what the device did: their time, without rates and a roof."""
    op, phase, dtype = key
    num, ns = sum(row.num for row in rows), sum(row.ns for row in rows)
    return OpSum(op, phase, dtype, num, ns, tflops=None, gbps=None, roof="", roof_pct=None, lost_ns=None)


def _sum(key: Sequence[str], rows: Sequence[OpWork], peaks: dict[int, Peaks | None]) -> OpSum:
    """Return all calls together. Those above their roof count as at it; no rate and share where most of them are."""
    roofed = [against(row, peaks[row.rank]) for row in rows]
    by_roof = {kind: sum(each.least_ns for each in roofed if each.roof == kind) for kind in ("compute", "memory")}
    ns, least_ns = sum(row.ns for row in rows), sum(by_roof.values())
    fast_ns = sum(row.ns for row, each in zip(rows, roofed, strict=True) if each.doubt)
    is_doubtful = 2 * fast_ns > ns or least_ns > ns
    has_share = all(each.roof for each in roofed) and ns > 0 and not is_doubtful
    lost_ns = sum(max(row.ns - each.least_ns, 0.0) for row, each in zip(rows, roofed, strict=True))
    op, phase, dtype = key
    return OpSum(
        op,
        phase,
        dtype,
        num=sum(row.num for row in rows),
        gpu_ns=ns,
        tflops=None if is_doubtful else rate(sum(row.flops for row in rows), ns, 1e-3),
        gbps=None if is_doubtful else rate(sum(row.bytes for row in rows), ns, 1.0),
        roof=max(by_roof, key=lambda kind: by_roof[kind]) if any(each.roof for each in roofed) else "",
        roof_pct=100 * (1 - lost_ns / ns) if has_share else None,
        lost_ns=round(lost_ns) if has_share else None,
    )


def against(row: OpWork, peaks: Peaks | None) -> Roofed:
    """Return the calls of a row, over the whole trace, against the roof of their shapes."""
    return against_roofs(peaks, flops=row.flops, size_bytes=row.bytes, dtype=row.dtype, ns=row.ns, unsure=row.unsure)


def own_roofs(shown: Sequence[OpSum], parts: Sequence[RankWork], peaks: dict[int, Peaks | None]) -> str:
    """Return what the shares of those shown are of, and how many of their calls exceed it."""
    keys = {(each.op, each.phase, each.dtype) for each in shown if each.roof_pct is not None}
    if not keys:
        return ""
    rows = [row for part in parts for row in part.rows if (row.op, row.phase, row.dtype) in keys and not row.unsure]
    least_ns = NOTHING * sum(row.ns for row in rows)
    words = {
        "compute": "the model or the peak is wrong for them, as for Winograd and FFT convolutions",
        "memory": "their data is in a cache, or the model is wrong for them",
    }
    sentences = ["Each set of shapes against its own roof."]
    for kind, reason in words.items():
        roofed = [(row, against(row, peaks[row.rank])) for row in rows]
        fast = [row for row, each in roofed if each.doubt and each.roof == kind]
        if fast and sum(row.ns for row in fast) >= least_ns:
            num = sum(row.num for row in fast)
            exceed = "1 call exceeds" if num == 1 else f"{num:,} calls exceed"
            counts = "counts" if num == 1 else "count"
            sentences.append(f"{exceed} the {kind} roof, and {counts} as at it: {reason}.")
    return " ".join(sentences)


def without_rates(shown: Sequence[OpSum], parts: Sequence[RankWork]) -> str:
    """Return why ops among those shown have a time alone."""
    keys = {(each.op, each.phase, each.dtype) for each in shown if each.tflops is each.gbps is None}
    rows = [row for part in parts for row in part.rows if row.unsure and (row.op, row.phase, row.dtype) in keys]
    reasons = {
        "an upper bound (lengths of sequences or groups are not recorded)": any(row.is_bound for row in rows),
        "the bytes of all arguments of a kernel": not all(row.is_bound for row in rows),
    }
    either = " or ".join(reason for reason, is_one in reasons.items() if is_one)
    return f"No rate where the work is known only as {either}." if either else ""


def rate(amount: int, ns: int, per_ns: float) -> float | None:
    """Return an amount per ns in units of `1 / per_ns`; None for nothing, or no time."""
    return amount * per_ns / ns if amount and ns else None
