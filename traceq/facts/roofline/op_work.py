"""Work of the ops of one rank by phase, op and shapes, over its trace and over its counted steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.roofline.modelled_ops import ModelledOps, TimeKind, modelled_ops
from traceq.facts.roofline.work import Kind
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace

__all__ = ["OpWork", "RankWork", "rank_work"]

_KINDS = {Kind.CONTRACTION: "FLOPs", Kind.BYTES: "bytes", Kind.ARGUMENTS: "arguments"}
"""How tables call the kinds of models."""
_MIN_SHARE = 0.001
"""Part of a rank's modelled time from which calls of one shape are a row; the others are one row without shapes."""


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

    @property
    def unsure(self) -> str:
        """Why rates of the work would not be those of the device; "" where they are."""
        if self.is_bound:
            return "work is a bound"
        return "bytes of all arguments" if self.model == _KINDS[Kind.ARGUMENTS] else ""


@dataclass(frozen=True, slots=True)
class RankWork:
    """One rank's work, and ns by TimeKind."""

    rank: int
    rows: tuple[OpWork, ...]
    ns_of_kind: tuple[int, ...]


def rank_work(trace: Trace) -> RankWork:
    """Return the work of each op by phase and shapes, and what is known of the device's time."""
    ops = modelled_ops(trace)
    of_kind = np.zeros(len(TimeKind), np.int64)
    np.add.at(of_kind, ops.unit_kind, ops.unit_ns)
    return RankWork(trace.rank, tuple(_op_rows(trace, ops)), tuple(of_kind.tolist()))


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

    def total(values: NDArray[np.float64]) -> list[int]:
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


def _phase_of(trace: Trace, ops: ModelledOps) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return (phase of each op, names of the phases)."""
    labels, events = phases(trace), trace.events
    if len(device_work(trace)):
        return labels.work_phase[ops.first], labels.names
    return labels.phase_at(tracks(trace)[ops.row], events.ts[ops.row]), labels.names


def _in_counted_steps(trace: Trace, ops: ModelledOps) -> NDArray[np.bool_]:
    """Return which ops begin, on the device if there is one, in a counted step: bool[O]."""
    all_steps = steps(trace)
    start = trace.events.ts[ops.unit_row[ops.first]]
    return span_index(all_steps.window[all_steps.counted], start) >= 0


def _is_small(trace: Trace, ops: ModelledOps) -> NDArray[np.bool_]:
    """Return which ops have shapes whose calls together take little time: bool[O]."""
    groups = group([trace.events.name[ops.row], trace.events.shapes[ops.row]])
    ns = groups.totals(ops.ns)
    return np.asarray((ns < _MIN_SHARE * int(ops.ns.sum()))[groups.group_ids])
