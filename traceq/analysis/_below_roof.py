"""Ops against the roofs of a device: their sums, and that whose distance from what is reached costs the step most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import holds_in_steps, on_the_worst_rank, recurs, slack_by_rank, step_lengths
from traceq.causes.replay import replay_of
from traceq.causes.savings import Saving
from traceq.claims.claim import AT_MOST, BY_REPLAY, Claim, Subject, measured
from traceq.claims.limits import LARGE, NOTHING
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.op_work import OpWork, RankWork, rows_of_pieces
from traceq.facts.roofline.peaks import Peaks
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import column
from traceq.units import Unit
from traceq.whatif.intervention import RankIntervention, RankWeights
from traceq.whatif.predict import is_replayed
from traceq.whatif.rank_part import RankPart
from traceq.whatif.sentences import HELD


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
    return Roofed(roof, least_ns, sentences.DOUBTS[roof])


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
    """Return how many calls of those shown with a share exceed their roof."""
    keys = {(each.op, each.phase, each.dtype) for each in shown if each.roof_pct is not None}
    rows = [row for part in parts for row in part.rows if (row.op, row.phase, row.dtype) in keys and not row.unsure]
    roofed = [(row, against(row, peaks[row.rank])) for row in rows]
    fast = {kind: [row for row, each in roofed if each.doubt and each.roof == kind] for kind in sentences.ABOVE_ROOF}
    least_ns = NOTHING * sum(row.ns for row in rows)
    return " ".join(
        sentences.ABOVE_ROOF[kind].format(num=sum(row.num for row in of_kind))
        for kind, of_kind in fast.items()
        if of_kind and sum(row.ns for row in of_kind) >= least_ns
    )


def without_rates(shown: Sequence[OpSum], parts: Sequence[RankWork]) -> str:
    """Return why ops among those shown have a time alone."""
    keys = {(each.op, each.phase, each.dtype) for each in shown if each.tflops is each.gbps is None}
    rows = [row for part in parts for row in part.rows if row.unsure and (row.op, row.phase, row.dtype) in keys]
    return " ".join(
        text for is_bound, text in sentences.NO_RATE.items() if any(row.is_bound == is_bound for row in rows)
    )


def rate(amount: int, ns: int, per_ns: float) -> float | None:
    """Return an amount per ns in units of `1 / per_ns`; None for nothing, or no time."""
    return amount * per_ns / ns if amount and ns else None


_KERNEL_NS = 2_000
"""Time that no kernel needs to do nothing, where all of a trace take longer."""
_MOST_REPLAYS = 3
"""Ops of a rank whose savings are replayed."""

_Name = tuple[str, str, str]
"""Op, phase and dtype."""


@frozen
class _FasterRow:
    """A row of `rank_work`, by its index, whose calls take `factors` times as long in each counted step."""

    row: int
    factors: tuple[float, ...]


@frozen
class _FasterOps(RankIntervention):
    """The calls of some ops take less time on the device: rows of `rank_work` of each rank that has them."""

    rows: Mapping[int, tuple[_FasterRow, ...]]
    option = "faster ops"
    words = "with faster ops"
    held = HELD["scaled"]
    speeds_device = True

    def is_in(self, part: RankPart) -> bool:
        return bool(self.rows.get(part.trace.rank))

    def nothing(self, nearest: Sequence[str]) -> str:
        return f"{self.option}: no rank has one"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        takes_ns = _work_ns(part.trace, self.rows.get(part.trace.rank, ()))
        runs = np.flatnonzero((part.work >= 0) & part.counted)
        weights.edges[runs] = np.minimum(weights.edges[runs], takes_ns[part.work[runs]])


def _saved_by_faster_ops(trace: Trace, cases: tuple[tuple[_FasterRow, ...], ...]) -> tuple[Saving, ...]:
    """Return what the mean counted step saves in each case; nothing where too much of it cannot be replayed."""
    if not is_replayed(trace):
        return ()
    return tuple(replay_of(trace).with_shorter_work([_work_ns(trace, case) for case in cases]))


def _work_ns(trace: Trace, case: tuple[_FasterRow, ...]) -> NDArray[np.int64]:
    """Return how long each piece of device work takes: int64[D] ns."""
    work, (row, step) = device_work(trace), rows_of_pieces(trace)
    factor = np.ones(len(work))
    for faster in case:
        chosen = (row == faster.row) & (step >= 0)
        factor[chosen] = np.array(faster.factors)[step[chosen]]
    return np.rint((work.end - work.start) * factor).astype(np.int64)


@frozen(eq=False)
class _SlowOp:
    """Calls of one op, phase and dtype on one rank, which could take less time.

    `rows` by their index in RankWork; `target`: the dtype to multiply in; `least_ns`, `gain_ns` float64[K] of each
    counted step: how long they would take, and by how much that is less. `is_roofed`: it is their roof that limits most
    of `least_ns`, not that each of them launches a kernel. A target that is another dtype is one setting of all such
    ops: `gain_ns` and `faster` are of them together, which take `setting_ns` in the mean counted step; else 0.
    """

    rows: Mapping[int, OpWork]
    peaks: Peaks
    target: str
    least_ns: NDArray[np.float64]
    gain_ns: NDArray[np.float64]
    faster: tuple[_FasterRow, ...]
    is_roofed: bool
    setting_ns: int = 0

    @property
    def is_set(self) -> bool:
        """Whether a setting makes it faster."""
        return self.target != self.first.dtype

    @property
    def ns(self) -> int:
        """Time in all counted steps."""
        return sum(row.step_ns for row in self.rows.values())

    @property
    def first(self) -> OpWork:
        """Any of its rows."""
        return next(iter(self.rows.values()))

    @property
    def name(self) -> _Name:
        """What it is called on every rank."""
        return self.first.op, self.first.phase, self.first.dtype

    @property
    def key(self) -> str:
        """The key of the row that takes longest."""
        return max(self.rows.values(), key=lambda row: row.step_ns).key


def counted_steps(job: Job, index: int) -> tuple[int, int]:
    """Return (number of counted steps of a rank, their length together in ns)."""
    ns = step_lengths(job.ranks[index].steps)
    return max(len(ns), 1), int(ns.sum())


def below_roof(job: Job, parts: Sequence[RankWork], peaks: Mapping[int, Peaks | None]) -> tuple[Claim, ...]:
    """Return the op whose distance from what well-tuned kernels reach costs the step most, in most steps.

    It is one of the rank on which the time of an op on the device would be less by most, more than that rank waits for
    others; what its step saves is by a replay of that rank, and what the job's does if the op is faster on all ranks by
    that of all.
    """
    slack_ns = slack_by_rank(job)
    every = [{} if (of_rank := peaks[part.rank]) is None else _every_op(part, of_rank) for part in parts]
    slow = [_slow_ops(ops, part.base.ns) for ops, part in zip(every, parts, strict=True)]
    most_ns = [
        float(ops[0].gain_ns.mean()) - slack_ns.get(part.rank, 0.0) if ops else -np.inf
        for ops, part in zip(slow, parts, strict=True)
    ]
    worst = int(np.argmax(most_ns)) if most_ns else 0
    if not any(slow):
        return ()
    chosen, rank = slow[worst][:_MOST_REPLAYS], parts[worst].rank
    (savings,) = job.query(_saved_by_faster_ops, [(rank, tuple(op.faster for op in chosen))])
    best = _best(parts[worst].base.ns, chosen, savings)
    if savings and best is None:
        return ()
    op, saving = best or (chosen[0], None)
    faster = {part.rank: ops[op.name].faster for ops, part in zip(every, parts, strict=True) if op.name in ops}
    claims = [_claim(op, saving) if index == worst else None for index in range(len(parts))]
    return on_the_worst_rank(job, claims, slack_ns, None if saving is None else _FasterOps(faster))


def _every_op(part: RankWork, peaks: Peaks) -> dict[_Name, _SlowOp]:
    """Return the ops of a rank, whether or not they would take less time."""
    by_op: dict[_Name, dict[int, OpWork]] = {}
    for index, row in enumerate(part.rows):
        if not row.unsure and row.step_ns:
            by_op.setdefault((row.op, row.phase, row.dtype), {})[index] = row
    ops = {name: _slow_op(rows, peaks, part.shortest_ns) for name, rows in by_op.items()}
    of_setting = [op for op in ops.values() if op.is_set]
    if not of_setting[1:]:
        return ops
    together = {
        "gain_ns": np.sum([op.gain_ns for op in of_setting], axis=0),
        "faster": tuple(row for op in of_setting for row in op.faster),
        "setting_ns": round(sum(op.ns for op in of_setting) / len(of_setting[0].gain_ns)),
    }
    return {name: replace(op, **together) if op.is_set else op for name, op in ops.items()}


def _slow_ops(ops: Mapping[_Name, _SlowOp], step_ns: NDArray[np.float64]) -> list[_SlowOp]:
    """Return the ops of a rank that would take less time on the device by much of most steps, that with most first.

    Of those of one setting only that which takes longest.
    """
    longest = max((op for op in ops.values() if op.is_set and op.is_roofed), key=lambda op: op.ns, default=None)
    large = [
        op
        for op in ops.values()
        if (op is longest if op.is_set else op.is_roofed)
        and op.gain_ns.sum() >= LARGE * step_ns.sum() > 0
        and holds_in_steps(op.gain_ns, step_ns, 100 * LARGE)
    ]
    return sorted(large, key=lambda op: -float(op.gain_ns.sum()))


def _slow_op(rows: Mapping[int, OpWork], peaks: Peaks, shortest_ns: int) -> _SlowOp:
    """Return by how much calls exceed the time at what is reachable of their roof, in no less than a kernel each.

    Calls of one set of shapes gain 0 where those of all steps together exceed nothing, or their roof is not known. Time
    for which the device did something else is none of theirs.
    """
    first = next(iter(rows.values()))
    num_steps = len(first.steps_ns)
    target = _target(first.dtype, list(rows.values()), peaks)
    least_ns, gain_ns, launched_ns = np.zeros(num_steps), np.zeros(num_steps), 0.0
    faster = []
    for index, row in rows.items():
        ns, at_roof_ns = np.array(row.steps_ns, np.float64), _reachable_ns(row, target, peaks)
        kernels_ns = min(shortest_ns, _KERNEL_NS) * np.array(row.steps_num, np.float64)
        row_ns = ns if at_roof_ns is None else np.maximum(at_roof_ns, kernels_ns)
        if row_ns.sum() >= ns.sum():
            row_ns = ns
        elif at_roof_ns is not None:
            launched_ns += float(kernels_ns[kernels_ns > at_roof_ns].sum())
            faster.append(_FasterRow(index, tuple((row_ns / np.maximum(ns, 1)).tolist())))
        least_ns, gain_ns = least_ns + row_ns, gain_ns + ns - row_ns
    is_roofed = 2 * launched_ns <= least_ns.sum()
    return _SlowOp(rows, peaks, target, least_ns, gain_ns, tuple(faster), is_roofed)


def _target(dtype: str, rows: Sequence[OpWork], peaks: Peaks) -> str:
    """Return the dtype to multiply in: TF32 where FLOPs in float32 bind the calls, and the device has it."""
    is_slower = dtype == "float32" and peaks.rate("tf32") > peaks.rate("float32")
    return "tf32" if is_slower and _together(rows, peaks).roof == "compute" else dtype


def _together(rows: Sequence[OpWork], peaks: Peaks) -> Roofed:
    """Return all calls of the counted steps against their roof."""
    flops, moved = sum(row.step_flops for row in rows), sum(row.step_bytes for row in rows)
    ns = sum(row.step_ns for row in rows)
    return against_roofs(peaks, flops=flops, size_bytes=moved, dtype=rows[0].dtype, ns=ns)


def _reachable_ns(row: OpWork, target: str, peaks: Peaks) -> NDArray[np.float64] | None:
    """Return float64[K] ns: the calls of each counted step at what is reachable of the roof; None without a result."""
    in_dtype = partial(against_roofs, peaks, flops=row.step_flops, size_bytes=row.step_bytes, ns=row.step_ns)
    roofed = in_dtype(dtype=target)
    if in_dtype(dtype=row.dtype).doubt or not roofed.roof:
        return None
    of_steps = zip(row.steps_ns, row.steps_flops, row.steps_bytes, strict=True)
    least_ns = [
        against_roofs(peaks, flops=flops, size_bytes=moved, dtype=target, ns=ns).least_ns
        for ns, flops, moved in of_steps
    ]
    return np.array(least_ns) / peaks.reachable(roofed.roof)


def _best(
    step_ns: NDArray[np.float64], slow: Sequence[_SlowOp], savings: Sequence[Saving]
) -> tuple[_SlowOp, Saving] | None:
    """Return the op without which a rank's step is shorter by most; None if that is not much of most steps."""
    if not savings:
        return None
    op, saving = max(zip(slow, savings, strict=True), key=lambda pair: pair[1].least_ns)
    is_much = saving.least_ns >= LARGE * float(step_ns.mean())
    return (op, saving) if is_much and recurs(saving.steps_ns, step_ns, 100 * LARGE) else None


def _claim(op: _SlowOp, saving: Saving | None) -> Claim:
    """Return the claim on an op; by its time on the device if no saving is known."""
    rows, peaks, dtype = list(op.rows.values()), op.peaks, op.first.dtype
    roofed, ns = _together(rows, peaks), op.ns
    flops, moved = sum(row.step_flops for row in rows), sum(row.step_bytes for row in rows)
    is_compute = roofed.roof == "compute"
    measures = measured(
        roof=roofed.roof,
        roof_pct=100 * roofed.least_ns / ns,
        dtype=dtype,
        tflops=flops / ns * 1e-3 if is_compute else None,
        peak_tflops=peaks.rate(dtype) * 1e-12 if is_compute else None,
        gbps=None if is_compute else moved / ns,
        peak_gbps=None if is_compute else peaks.bandwidth * 1e-9,
        takes_ns=round(ns / len(op.gain_ns)),
        reachable_ns=round(float(op.least_ns.mean())),
        reachable_pct=None if op.is_set else 100 * peaks.reachable(roofed.roof),
        tf32_tflops=peaks.rate(op.target) * 1e-12 if op.is_set else None,
        setting_ns=op.setting_ns or None,
    )
    subject = Subject(op=op.first.op, phase=op.first.phase, key=op.key)
    remedy = "tf32" if op.is_set else ""
    if saving is None:
        gain_ns = round(float(op.gain_ns.mean()))
        return Claim("below_roof", gain_ns, subject, measures, (0, gain_ns), AT_MOST, remedy)
    gain = saving.least_ns, saving.most_ns
    return Claim("below_roof", saving.least_ns, subject, measures, gain, BY_REPLAY, remedy)
