"""Work of every op that launched kernels, and which part of the device's time has a model."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work, first_index
from traceq.facts.events.graph_replays import captured_nodes, graph_replays
from traceq.facts.events.kernels import COMMUNICATION_OP, is_communication, launched_kernels
from traceq.facts.events.name_patterns import AUTOGRAD_NODE, matching
from traceq.facts.events.nesting import Nest, host_ops
from traceq.facts.events.self_time import self_ns
from traceq.facts.memo import once_per_trace
from traceq.facts.roofline.formulas import work_of
from traceq.facts.roofline.op_calls import Kind, Work, parse_call
from traceq.facts.roofline.owning_ops import Units, climb, named, owning_ops
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Category, Trace

_TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
"""Kernels that compute float32 with TF32: NVIDIA's instruction of 16x8x8 on float32 exists for nothing else."""


@frozen(eq=False)
class _CapturedOps:
    """P ops of graphs of another window, and the pieces of time (U, in the order of DeviceWork) that do their work.

    `of_unit` int64[U]: the op of each piece, -1 without one; `call` int64[U]: which call of it was captured. `name`,
    `shapes` int64[P + 1] into `texts`, -1 = absent; `work` int64[P + 1] into `works`, -1 without a model. Their last
    elements, -1, are those of no op.
    """

    of_unit: NDArray[np.int64]
    call: NDArray[np.int64]
    name: NDArray[np.int64]
    shapes: NDArray[np.int64]
    work: NDArray[np.int64]
    texts: tuple[str, ...]
    works: tuple[Work, ...]


def _captured_ops(trace: Trace, num_units: int) -> _CapturedOps:
    """Return the ops of the nodes that device work runs; none where the trace has the captures itself."""
    strings, graphs = trace.events.strings, trace.captured
    none = np.full(1, -1)
    if graphs is None or not len(device_work(trace)):
        absent = np.full(num_units, -1)
        return _CapturedOps(absent, absent, none, none, none, strings, ())
    node = np.where(graph_replays(trace).captured < 0, captured_nodes(trace), -1)
    calls = [parse_call(op.name, op.shapes, op.types, op.strides, op.inputs) for op in graphs.ops]
    models = [None if call is None else work_of(call) for call in calls]
    works = [model for model in models if model is not None]
    has_model = np.array([model is not None for model in models], np.bool_)
    has_shapes = np.array([op.shapes != "" for op in graphs.ops], np.bool_)
    place = len(strings) + 2 * np.arange(len(graphs.ops))
    return _CapturedOps(
        of_unit=np.r_[graphs.op, -1][node],
        call=np.r_[graphs.call, -1][node],
        name=np.r_[place, none],
        shapes=np.r_[np.where(has_shapes, place + 1, -1), none],
        work=np.r_[np.where(has_model, np.cumsum(has_model) - 1, -1), none],
        texts=(*strings, *(text for op in graphs.ops for text in (op.name, op.shapes))),
        works=tuple(works),
    )


class TimeKind(IntEnum):
    """What is known of the work behind a piece of device time."""

    MODELLED = 0
    """Its FLOPs or bytes are known from the op's inputs."""
    NO_MODEL = 1
    """The op's inputs are recorded, but there is no formula for it."""
    NO_SHAPE = 2
    """The op's inputs were not recorded."""
    NO_OP = 3
    """No op launched it: a graph did, or its launch is not in the trace."""
    COMMUNICATION = 4
    COPY = 5
    """Copies and memsets."""
    ARGUMENTS = 6
    """Only the bytes of the op's arguments are known, which bound its work from neither side."""


@frozen(eq=False)
class ModelledOps:
    """O ops with a model, each with all the work that it or ops inside it did, in U pieces of time.

    A piece is an operation of the device, in the order of DeviceWork; in a trace without device work it is the self
    time of a CPU op. `unit_row` int64[U] into Events; `unit_ns` int64[U]: its duration; `unit_op` int32[U]: the op
    (into O) that it belongs to, -1 without a model; `unit_kind` int8[U] of TimeKind. `row` int64[O] into Events, -1
    where another window captured the op; `name`, `shapes` int64[O] into `texts`; `work` int64[O] into `works`, the
    distinct models; `ns` int64[O]; `first` int64[O] the op's first piece; `repeats` bool[O]: a forward op that the
    backward pass runs again; `tf32` bool[O].
    """

    row: NDArray[np.int64]
    name: NDArray[np.int64]
    shapes: NDArray[np.int64]
    texts: tuple[str, ...]
    work: NDArray[np.int64]
    ns: NDArray[np.int64]
    first: NDArray[np.int64]
    repeats: NDArray[np.bool_]
    tf32: NDArray[np.bool_]
    works: tuple[Work, ...]
    unit_row: NDArray[np.int64]
    unit_ns: NDArray[np.int64]
    unit_op: NDArray[np.int32]
    unit_kind: NDArray[np.int8]


@once_per_trace
def modelled_ops(trace: Trace) -> ModelledOps:
    """Return the ops with a model, and what is known of each piece of device time.

    A kernel belongs to the outermost op around its launch that has a formula of a contraction, so that nothing counts
    twice; else to the innermost one with a formula of bytes; else to the innermost library kernel with its arguments.
    An op inside another overload of itself, as `aten::mul` in `aten::mul_`, is part of that call. Each replay of a CUDA
    graph runs the ops again that were captured for it.
    """
    units = _of_device(trace) if len(device_work(trace)) else _of_host(trace)
    owning, ops = owning_ops(trace, units), _captured_ops(trace, len(units.row))
    owner = np.where(
        owning.owner >= 0, owning.owner, np.where(ops.work[ops.of_unit] >= 0, len(trace.events) + ops.call, -1)
    )
    owned = np.flatnonzero(owner >= 0)
    groups = group([owner[owned], units.replay[owned]])
    row = np.where(groups.keys[:, 0] < len(trace.events), groups.keys[:, 0], -1)
    first = owned[groups.first]
    captured = np.where(row < 0, ops.of_unit[first], -1)
    work = np.where(row >= 0, owning.work[row], len(owning.works) + ops.work[captured])
    works = (*owning.works, *ops.works)
    tf32, unit_op = np.zeros(len(row), np.bool_), np.full(len(units.op), -1, np.int32)
    np.logical_or.at(tf32, groups.group_ids, matching(trace.events, units.row[owned], _TF32))
    unit_op[owned] = groups.group_ids
    is_arguments = np.array([each.kind == Kind.ARGUMENTS for each in works], np.bool_)
    return ModelledOps(
        row=row,
        name=np.where(row >= 0, trace.events.name[row], ops.name[captured]),
        shapes=np.where(row >= 0, trace.events.shapes[row], ops.shapes[captured]),
        texts=ops.texts,
        work=work,
        ns=groups.totals(units.ns[owned]),
        first=first,
        repeats=_repeats(trace, row),
        tf32=tf32,
        works=works,
        unit_row=units.row,
        unit_ns=units.ns,
        unit_op=unit_op,
        unit_kind=_kinds(trace, units, ops, unit_op, is_arguments[work]).astype(np.int8),
    )


def _of_device(trace: Trace) -> Units:
    """Return all device work; collectives, copies and memsets have no op that matters here."""
    work, kernels, communicates = device_work(trace), launched_kernels(trace), is_communication(trace)
    op, kind = np.full(len(work), -1), np.full(len(work), int(TimeKind.COPY))
    op[kernels.work], kind[kernels.work] = _ops_of_kernels(trace), TimeKind.NO_OP
    op[communicates], kind[communicates] = -1, TimeKind.COMMUNICATION
    replays = graph_replays(trace)
    op[replays.replayed & (replays.captured < 0)] = -1  # what is around the replay launched none of its kernels
    return Units(work.rows, work.end - work.start, op, kind, np.where(replays.replayed, work.call, -1))


def _of_host(trace: Trace) -> Units:
    """Return all CPU ops with their self time; those of collectives are communication."""
    parts = [(ops.rows, self_ns(ops)) for ops in host_ops(trace).values()]
    rows = np.concatenate([rows for rows, _ in parts]) if parts else np.empty(0, np.int64)
    ns = np.concatenate([ns for _, ns in parts]) if parts else rows
    order = np.argsort(rows)
    rows, ns = rows[order], ns[order]
    communicates = named(trace, rows, lambda name: COMMUNICATION_OP.search(name) is not None)
    kind = np.where(communicates, int(TimeKind.COMMUNICATION), int(TimeKind.NO_OP))
    return Units(rows, ns, np.where(communicates, -1, rows), kind, np.full(len(rows), -1))


def _ops_of_kernels(trace: Trace) -> NDArray[np.int64]:
    """Return the innermost op of each kernel, by its launch or else by its `External id`: int64[K], -1 without one."""
    events, kernels = trace.events, launched_kernels(trace)
    missing = np.flatnonzero(kernels.op < 0)
    ops = events.rows(Category.CPU_OP)
    numbered = ops[events.external_id[ops] > 0]
    wanted = events.external_id[device_work(trace).rows[kernels.work[missing]]]
    by_id = np.r_[numbered, -1][first_index(events.external_id[numbered], np.where(wanted > 0, wanted, -1))]
    op = kernels.op.copy()
    op[missing] = np.where(wanted > 0, by_id, -1)
    return op


def _kinds(
    trace: Trace, units: Units, ops: _CapturedOps, unit_op: NDArray[np.int32], is_arguments: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the TimeKind of all pieces of time, int64[U]; bool[O] are the ops of which only arguments are known."""
    has_op = (units.op >= 0) | (ops.of_unit >= 0)
    has_shapes = np.where(units.op >= 0, trace.events.shapes[units.op], ops.shapes[ops.of_unit]) >= 0
    of_shapes = np.where(has_shapes, int(TimeKind.NO_MODEL), int(TimeKind.NO_SHAPE))
    of_op = np.where(is_arguments, int(TimeKind.ARGUMENTS), int(TimeKind.MODELLED))
    kind = np.where(has_op, of_shapes, units.kind)
    return np.where(unit_op >= 0, np.r_[of_op, -1][unit_op], kind)


def _repeats(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows are forward ops that run again in the backward pass, as activation checkpointing does.

    Such an op runs inside the autograd engine and has a sequence number of its own, which no op of a backward pass has.
    """
    events = trace.events
    repeats = np.zeros(len(rows), np.bool_)
    is_engine = np.zeros(len(events), np.bool_)
    ops = events.rows(Category.CPU_OP)
    is_engine[ops] = matching(events, ops, AUTOGRAD_NODE)
    if not is_engine.any():
        return repeats

    def visit(nest: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        repeats[selected[which]] |= is_engine[nest.rows[index]]

    selected = np.flatnonzero(rows >= 0)
    climb(trace, rows[selected], visit)
    return repeats & (events.sequence[rows] >= 0) & (events.forward_thread[rows] <= 0)
