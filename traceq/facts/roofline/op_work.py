"""Work of the ops of one rank by phase, op and shapes, over its trace and over its counted steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.claims.limits import NOTHING
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.roofline.modelled_ops import ModelledOps, TimeKind, modelled_ops
from traceq.facts.roofline.op_calls import Kind
from traceq.facts.sentences import UNSURE
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import ShareBase, share_base
from traceq.frozen import frozen
from traceq.grouping import Groups, group
from traceq.intervals import span_index
from traceq.model import Category, Trace

_KINDS = {Kind.CONTRACTION: "FLOPs", Kind.BYTES: "bytes", Kind.ARGUMENTS: "arguments"}
"""How tables call the kinds of models."""


@frozen
class OpWork:
    """Calls of one op with one set of shapes, in one phase of one rank, over the whole trace.

    `flops` as executed, without masked pairs of attention; `model_flops` without what is computed twice; `full_flops`
    with masked pairs, as torch.utils.flop_counter counts. The last five are of the counted steps alone, four of
    them of each.
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
    step_model_flops: int
    steps_num: tuple[int, ...]
    steps_ns: tuple[int, ...]
    steps_flops: tuple[int, ...]
    steps_bytes: tuple[int, ...]

    @property
    def key(self) -> str:
        """What identifies it in the table of ops, and in findings."""
        return f"{self.phase}|{self.op}|{self.dtype}|{self.shapes}"

    @property
    def step_num(self) -> int:
        """Calls in all counted steps."""
        return sum(self.steps_num)

    @property
    def step_ns(self) -> int:
        """Time in all counted steps."""
        return sum(self.steps_ns)

    @property
    def step_flops(self) -> int:
        """FLOPs in all counted steps."""
        return sum(self.steps_flops)

    @property
    def step_bytes(self) -> int:
        """Bytes in all counted steps."""
        return sum(self.steps_bytes)

    @property
    def unsure(self) -> str:
        """Why rates of the work would not be those of the device; "" where they are."""
        if self.is_bound:
            return UNSURE["bound"]
        return UNSURE["arguments"] if self.model == _KINDS[Kind.ARGUMENTS] else ""


@frozen
class RankWork:
    """One rank's work, and ns by TimeKind.

    `shortest_ns`: the shortest kernel of the trace, which no call of an op undercuts; 0 without a device. `base`: what
    shares of its steps are of.
    """

    rank: int
    rows: tuple[OpWork, ...]
    ns_of_kind: tuple[int, ...]
    shortest_ns: int
    base: ShareBase


def rank_work(trace: Trace) -> RankWork:
    """Return the work of each op by phase and shapes, and what is known of the device's time."""
    ops = modelled_ops(trace)
    of_kind = np.zeros(len(TimeKind), np.int64)
    np.add.at(of_kind, ops.unit_kind, ops.unit_ns)
    kernel_ns = trace.events.dur[trace.events.rows(Category.KERNEL)]
    return RankWork(
        trace.rank,
        tuple(_op_rows(trace, ops)),
        tuple(of_kind.tolist()),
        shortest_ns=int(kernel_ns.min()) if len(kernel_ns) else 0,
        base=share_base(trace),
    )


def _op_rows(trace: Trace, ops: ModelledOps) -> list[OpWork]:
    """Return the work by phase, op, shapes, dtype and model, what takes longest first."""
    if len(ops.row) == 0:
        return []
    strings, phase_names, dtypes, groups = ops.texts, phases(trace).names, _dtype_of(ops)[1], _groups(trace)
    sums = _sums(trace, ops, groups)
    rows = [
        OpWork(
            rank=trace.rank,
            phase=phase_names[in_phase],
            op=strings[name],
            shapes="".join(strings[text].split()) if text >= 0 else "",
            dtype=dtypes[of_dtype],
            model=_KINDS[Kind(of_kind)],
            is_bound=bool(bound),
            **{column: values[index] for column, values in sums.items()},
        )
        for index, (in_phase, name, text, of_dtype, of_kind, bound) in enumerate(groups.keys.tolist())
    ]
    return sorted(rows, key=lambda row: -row.ns)


def rows_of_pieces(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (row, counted step) of each piece of device time: int64[U] each.

    `row` into the rows of `rank_work`, -1 for a piece without a model; the step in which the piece's op begins, -1 for
    none.
    """
    ops, groups = modelled_ops(trace), _groups(trace)
    place = np.empty(len(groups.keys), np.int64)
    place[np.argsort(-groups.totals(ops.ns), kind="stable")] = np.arange(len(place))
    row, step = np.r_[place[groups.group_ids], -1], np.r_[_counted_step(trace, ops), -1]
    return row[ops.unit_op], step[ops.unit_op]


@once_per_trace
def _groups(trace: Trace) -> Groups:
    """Return the ops by phase, op, shapes, dtype, kind of model, and whether their work is a bound."""
    ops = modelled_ops(trace)
    shapes = np.where(_is_small(ops), -1, ops.shapes)
    kind, is_bound = (np.array([getattr(work, name) for work in ops.works], np.int64) for name in ("kind", "is_bound"))
    return group([_phase_of(trace, ops), ops.name, shapes, _dtype_of(ops)[0], kind[ops.work], is_bound[ops.work]])


def _dtype_of(ops: ModelledOps) -> tuple[NDArray[np.int64], list[str]]:
    """Return (dtype int64[O] of each op's operands, names of the dtypes): float32 computed with TF32 is `tf32`."""
    dtypes = ["tf32", *sorted({work.dtype for work in ops.works})]
    dtype = np.array([dtypes.index(work.dtype, 1) for work in ops.works], np.int64)[ops.work]
    is_float32 = np.array([work.dtype == "float32" and work.flops > 0 for work in ops.works], np.bool_)[ops.work]
    dtype[ops.tf32 & is_float32] = 0
    return dtype, dtypes


def _sums(trace: Trace, ops: ModelledOps, groups: Groups) -> dict[str, Sequence[Any]]:
    """Return the sums of each group by their name in OpWork, over the trace, over the counted steps, and of each."""
    full, executed, model, moved = (
        np.array([getattr(work, name) for work in ops.works], np.float64)[ops.work]
        for name in ("flops", "executed", "model", "bytes")
    )
    model[ops.repeats] = 0
    of_trace = {"flops": executed, "model_flops": model, "full_flops": full, "bytes": moved}
    of_each_step = {
        "steps_num": np.ones(len(ops.row), np.int64),
        "steps_ns": ops.ns,
        "steps_flops": executed,
        "steps_bytes": moved,
    }
    step, num_steps = _counted_step(trace, ops), int(steps(trace).counted.sum())
    inside = step >= 0
    cell = groups.group_ids[inside] * num_steps + step[inside]

    def total(values: NDArray[np.float64]) -> list[int]:
        return [round(value) for value in np.bincount(groups.group_ids, values, len(groups.keys)).tolist()]

    def by_step(values: NDArray[Any]) -> list[tuple[int, ...]]:
        sums = np.bincount(cell, values[inside], len(groups.keys) * num_steps).reshape(-1, num_steps)
        return [tuple(map(round, each)) for each in sums.tolist()]

    return {
        "num": groups.count(),
        "ns": groups.sum(ops.ns),
        **{name: total(values) for name, values in of_trace.items()},
        "step_model_flops": total(np.where(inside, model, 0)),
        **{name: by_step(values) for name, values in of_each_step.items()},
    }


def _phase_of(trace: Trace, ops: ModelledOps) -> NDArray[np.int64]:
    """Return the phase of each op: int64[O]."""
    labels, events = phases(trace), trace.events
    if len(device_work(trace)):
        return labels.work_phase[ops.first]
    return labels.phase_at(tracks(trace)[ops.row], events.ts[ops.row])


def _counted_step(trace: Trace, ops: ModelledOps) -> NDArray[np.int64]:
    """Return the counted step in which each op begins, on the device if there is one; -1 for none: int64[O]."""
    all_steps = steps(trace)
    start = trace.events.ts[ops.unit_row[ops.first]]
    return span_index(all_steps.window[all_steps.counted], start)


def _is_small(ops: ModelledOps) -> NDArray[np.bool_]:
    """Return which ops need no row of their shapes, whose calls together take little time: bool[O].

    Where there are FLOPs, one shape may be bound by them and another by bytes: at its roof each takes the longer of the
    two times, and the sum of those cannot be told from sums of FLOPs and bytes.
    """
    groups = group([ops.name, ops.shapes])
    is_short = groups.totals(ops.ns) < NOTHING * int(ops.ns.sum())
    only_moves = np.array([work.executed == 0 for work in ops.works], np.bool_)[ops.work]
    return np.asarray(is_short[groups.group_ids] & only_moves)
