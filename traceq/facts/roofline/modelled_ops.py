"""Work of every op that launched kernels, and which part of the device's time has a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.communication_kernels import COMMUNICATION_OP, is_communication
from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import forward_op
from traceq.facts.events.id_lookup import first_index
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.events.name_patterns import matching, unique_inverse, unique_names
from traceq.facts.events.nesting import Nest, host_ops, tracks
from traceq.facts.events.self_time import self_ns
from traceq.facts.memo import once_per_trace
from traceq.facts.roofline.contractions import CONVOLUTION_BACKWARDS, CONVOLUTION_FORWARDS
from traceq.facts.roofline.dtypes import ITEM_BYTES, dtype_in_kernel
from traceq.facts.roofline.formulas import has_formula, is_opaque_kernel, needs_values, work_of
from traceq.facts.roofline.op_calls import parse_call
from traceq.facts.roofline.work import Kind, Work
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["ModelledOps", "TimeKind", "modelled_ops"]

_ENGINE = re.compile(r"^autograd::engine::evaluate_function")
_TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
"""Kernels that compute float32 with TF32: NVIDIA's instruction of 16x8x8 on float32 exists for nothing else."""
_PARTS_OF_BACKWARD = re.compile(r"convolution_backward_(input|weight)$")


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
    time of a CPU op. `unit_row` int64[U] into Events; `unit_ns`, `unit_op`, `unit_kind` int64[U]: its duration, the op
    (into O) that it belongs to, -1 without a model, and its TimeKind. `row` int64[O] into Events; `work` int64[O] into
    `works`, the distinct models; `ns` int64[O]; `first` int64[O] the op's first piece; `repeats` bool[O]: a forward op
    that the backward pass runs again; `tf32` bool[O].
    """

    row: NDArray[np.int64]
    work: NDArray[np.int64]
    ns: NDArray[np.int64]
    first: NDArray[np.int64]
    repeats: NDArray[np.bool_]
    tf32: NDArray[np.bool_]
    works: tuple[Work, ...]
    unit_row: NDArray[np.int64]
    unit_ns: NDArray[np.int64]
    unit_op: NDArray[np.int64]
    unit_kind: NDArray[np.int64]


@frozen(eq=False)
class _Units:
    """U pieces of time: `row` int64[U] into Events; `ns`; `op` the innermost op around each, -1 without one; `kind`.

    `kind` is NO_OP where it is not decided yet.
    """

    row: NDArray[np.int64]
    ns: NDArray[np.int64]
    op: NDArray[np.int64]
    kind: NDArray[np.int64]


@once_per_trace
def modelled_ops(trace: Trace) -> ModelledOps:
    """Return the ops with a model, and what is known of each piece of device time.

    A kernel belongs to the outermost op around its launch that has a formula of a contraction, so that nothing counts
    twice; else to the innermost one with a formula of bytes; else to the innermost library kernel with its arguments.
    An op inside another overload of itself, as `aten::mul` in `aten::mul_`, is part of that call.
    """
    units = _of_device(trace) if len(device_work(trace)) else _of_host(trace)
    launching = sorted_unique(units.op[units.op >= 0])
    candidates, work_id, works = _works(trace, _enclosing(trace, launching, _with_formula(trace)), units)
    owner_of = _owners(trace, launching, candidates, work_id, works)
    owner = np.r_[owner_of, -1][np.where(units.op >= 0, np.searchsorted(launching, units.op), -1)]
    owned = np.flatnonzero(owner >= 0)
    row, of = unique_inverse(owner[owned], len(trace.events))
    first = np.zeros(len(row), np.int64)
    first[of[::-1]] = np.arange(len(of))[::-1]  # the last assignment wins, which is that of the first
    is_arguments = np.array([work.kind == Kind.ARGUMENTS for work in works], np.bool_)
    ns, tf32, unit_op = np.zeros(len(row), np.int64), np.zeros(len(row), np.bool_), np.full(len(units.op), -1)
    np.add.at(ns, of, units.ns[owned])
    np.logical_or.at(tf32, of, matching(trace.events, units.row[owned], _TF32))
    unit_op[owned] = of
    return ModelledOps(
        row=row,
        work=work_id[np.searchsorted(candidates, row)],
        ns=ns,
        first=owned[first],
        repeats=_repeats(trace, row),
        tf32=tf32,
        works=works,
        unit_row=units.row,
        unit_ns=units.ns,
        unit_op=unit_op,
        unit_kind=_kinds(trace, units, unit_op, is_arguments[work_id[np.searchsorted(candidates, row)]]),
    )


def _of_device(trace: Trace) -> _Units:
    """Return all device work; collectives, copies and memsets have no op that matters here."""
    work, kernels, communicates = device_work(trace), launched_kernels(trace), is_communication(trace)
    op, kind = np.full(len(work), -1), np.full(len(work), int(TimeKind.COPY))
    op[kernels.work], kind[kernels.work] = _ops_of_kernels(trace), TimeKind.NO_OP
    op[communicates], kind[communicates] = -1, TimeKind.COMMUNICATION
    return _Units(work.rows, work.end - work.start, op, kind)


def _of_host(trace: Trace) -> _Units:
    """Return all CPU ops with their self time; those of collectives are communication."""
    parts = [(ops.rows, self_ns(ops)) for ops in host_ops(trace).values()]
    rows = np.concatenate([rows for rows, _ in parts]) if parts else np.empty(0, np.int64)
    ns = np.concatenate([ns for _, ns in parts]) if parts else rows
    order = np.argsort(rows)
    rows, ns = rows[order], ns[order]
    communicates = _named(trace, rows, lambda name: COMMUNICATION_OP.search(name) is not None)
    kind = np.where(communicates, int(TimeKind.COMMUNICATION), int(TimeKind.NO_OP))
    return _Units(rows, ns, np.where(communicates, -1, rows), kind)


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


def _climb(
    trace: Trace,
    rows: NDArray[np.int64],
    visit: Callable[[Nest, NDArray[np.int64], NDArray[np.int64]], None],
    among: NDArray[np.bool_] | None = None,
) -> None:
    """Call `visit(nest, which, index)` for each level from ops upwards: `rows[which]` is in the op at `index`.

    Only levels of the rows `among`, bool[N], where given: ops nest deep, those that matter seldom do.
    """
    row_track = tracks(trace)[rows]
    for track, ops in host_ops(trace).items():
        which = np.flatnonzero(row_track == track)
        if len(which) == 0:
            continue
        chosen = np.ones(len(ops.rows), np.bool_) if among is None else among[ops.rows]
        nearest = np.append(ops.first_enclosing(np.arange(len(chosen)), chosen), -1)  # of -1: -1
        index = nearest[ops.index_of(rows[which])]
        while (inside := index >= 0).any():
            which, index = which[inside], index[inside]
            visit(ops, which, index)
            index = nearest[ops.parent[index]]


def _enclosing(trace: Trace, rows: NDArray[np.int64], among: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the ops `among`, bool[N], that are these rows or enclose them, ascending."""
    seen = np.zeros(len(trace.events), np.bool_)

    def visit(ops: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        seen[ops.rows[index]] = True

    _climb(trace, rows, visit, among)
    return np.flatnonzero(seen)


def _with_formula(trace: Trace) -> NDArray[np.bool_]:
    """Return which rows are ops with shapes whose work may be known by their names: bool[N]."""
    ops = trace.events.rows(Category.CPU_OP)
    ops = ops[trace.events.shapes[ops] >= 0]
    has_one = np.zeros(len(trace.events), np.bool_)
    has_one[ops] = _named(trace, ops, lambda name: has_formula(name) or is_opaque_kernel(name))
    return has_one


def _works(
    trace: Trace, rows: NDArray[np.int64], units: _Units
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[Work, ...]]:
    """Return (those of the rows with a model; their models, into the last; the distinct models).

    Each distinct combination of name, shapes, dtypes, strides and values is parsed once.
    """
    events = trace.events
    strings = (*events.strings, "")  # -1 is absent
    values = np.where(_named(trace, rows, needs_values), events.inputs[rows], -1)
    dtypes, dtype = _dtypes_of_lists(trace, rows, units)
    columns = [events.name[rows], events.shapes[rows], events.types[rows], events.strides[rows], values]
    groups = group([*columns, _partners(trace, rows), dtype])
    works: list[Work] = []
    number = np.full(len(groups.keys), -1)
    for place, (*key, list_dtype) in enumerate(groups.keys.tolist()):
        name, shapes, types, strides, inputs, partner = (strings[text] for text in key)
        call = parse_call(name, shapes, types, strides, inputs, partner=partner, dtype=dtypes[list_dtype])
        model = None if call is None else work_of(call)
        if model is not None:
            number[place] = len(works)
            works.append(model)
    work_id = number[groups.group_ids]
    return rows[work_id >= 0], work_id[work_id >= 0], tuple(works)


def _named(trace: Trace, rows: NDArray[np.int64], holds: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return which rows have a name for which something holds; each distinct name is asked once."""
    names, ids = unique_names(trace.events, rows)
    return np.array([holds(trace.events.strings[name]) for name in names.tolist()], np.bool_)[ids]


def _dtypes_of_lists(trace: Trace, rows: NDArray[np.int64], units: _Units) -> tuple[list[str], NDArray[np.int64]]:
    """Return (dtypes, the number of that in lists of tensors of each row): the kernel's name tells, never the op."""
    events, dtypes = trace.events, ["", *ITEM_BYTES]
    number = np.zeros(len(rows), np.int64)
    with_lists = np.array(["List" in text for text in (*events.strings, "")], np.bool_) if len(rows) else number > 0
    listed = np.flatnonzero(with_lists[events.types[rows]]) if len(rows) else rows
    order = np.argsort(units.op, kind="stable")
    place = np.searchsorted(units.op[order], rows[listed])
    has_kernel = np.r_[units.op[order], -1][place] == rows[listed]
    kernel_rows = units.row[order[place[has_kernel]]]
    names, ids = unique_names(events, kernel_rows)
    shown = [dtypes.index(dtype_in_kernel(events.strings[name])) for name in names.tolist()]
    number[listed[has_kernel]] = np.array(shown, np.int64)[ids]
    return dtypes, number


def _partners(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the shapes (string ids) of the call that tells what each convolution does not record: int64[rows], or -1.

    Of a forward one without values its backward op, by their sequence number; of a part of a backward op its parent.
    """
    events, partner = trace.events, np.full(len(rows), -1)
    is_part = matching(events, rows, _PARTS_OF_BACKWARD)

    def visit(ops: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        parent = ops.parent[index]
        new = (partner[parts[which]] < 0) & (parent >= 0)
        partner[parts[which[new]]] = events.shapes[ops.rows[parent[new]]]

    parts = np.flatnonzero(is_part)
    if len(parts):
        _climb(trace, rows[parts], visit)
    bare = np.flatnonzero((events.inputs[rows] < 0) & _named(trace, rows, CONVOLUTION_FORWARDS.__contains__))
    if len(bare):
        number, shapes = _recorded_gradients(trace)
        place = np.searchsorted(number, events.sequence[rows[bare]])
        is_same = np.r_[number, -2][place] == events.sequence[rows[bare]]
        partner[bare[is_same]] = shapes[place[is_same]]
    return partner


def _recorded_gradients(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (sequence numbers of forward ops, ascending; shapes of the backward op of a convolution of each)."""
    events = trace.events
    ops = events.rows(Category.CPU_OP)
    backward = ops[_named(trace, ops, CONVOLUTION_BACKWARDS.__contains__)]
    forward, number = forward_op(trace), np.full(len(backward), -1)

    def visit(nest: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        of_forward = forward[nest.rows[index]]
        new = (number[which] < 0) & (of_forward >= 0)
        number[which[new]] = events.sequence[of_forward[new]]

    _climb(trace, backward, visit)
    order = np.argsort(number, kind="stable")
    order = order[number[order] >= 0]
    first = np.r_[True, number[order[1:]] != number[order[:-1]]][: len(order)]
    return number[order[first]], events.shapes[backward[order[first]]].astype(np.int64)


def _owners(
    trace: Trace,
    launching: NDArray[np.int64],
    candidates: NDArray[np.int64],
    work_id: NDArray[np.int64],
    works: tuple[Work, ...],
) -> NDArray[np.int64]:
    """Return the op whose work each launching op is part of: rows of Events, -1 without a model."""
    rank = np.full(len(trace.events), -1, np.int8)
    of_work = np.array([int(work.kind) for work in works], np.int8)
    rank[candidates] = of_work[work_id] if len(works) else of_work
    best, owner = np.full(len(launching), -1), np.full(len(launching), -1)

    def visit(ops: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        row = ops.rows[index]
        better = (rank[row] > best[which]) | (rank[row] == Kind.CONTRACTION)
        best[which[better]], owner[which[better]] = rank[row[better]], row[better]

    _climb(trace, launching, visit, rank >= 0)
    return np.asarray(np.r_[_calls(trace, candidates), -1][owner])


def _calls(trace: Trace, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the call that each row is part of, int64[N]: of an op with a model the outermost of its overloads."""
    events = trace.events
    call, kind = np.arange(len(events)), -1 - np.arange(len(events))  # without a model: alike to none
    names, ids = unique_names(events, candidates)
    stems: dict[str, int] = {}
    numbers = [stems.setdefault(events.strings[name].rstrip("_"), len(stems)) for name in names.tolist()]
    kind[candidates] = np.array(numbers, np.int64)[ids]
    for ops in host_ops(trace).values():
        call[ops.rows] = ops.rows[ops.outermost_alike(kind[ops.rows])]
    return call


def _kinds(
    trace: Trace, units: _Units, unit_op: NDArray[np.int64], is_arguments: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the TimeKind of all pieces of time, int64[U]; bool[O] are the ops of which only arguments are known."""
    has_shapes = trace.events.shapes[units.op] >= 0
    kind = np.where(has_shapes, int(TimeKind.NO_MODEL), int(TimeKind.NO_SHAPE))
    of_op = np.where(is_arguments, int(TimeKind.ARGUMENTS), int(TimeKind.MODELLED))
    kind = np.where(unit_op >= 0, np.r_[of_op, -1][unit_op], kind)
    return np.where(units.op >= 0, kind, units.kind)


def _repeats(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which ops are forward ops that run again in the backward pass, as activation checkpointing does.

    Such an op runs inside the autograd engine and has a sequence number of its own, which no op of a backward pass has.
    """
    events = trace.events
    repeats = np.zeros(len(rows), np.bool_)
    is_engine = np.zeros(len(events), np.bool_)
    ops = events.rows(Category.CPU_OP)
    is_engine[ops] = matching(events, ops, _ENGINE)
    if not is_engine.any():
        return repeats

    def visit(nest: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        repeats[which] |= is_engine[nest.rows[index]]

    _climb(trace, rows, visit)
    return repeats & (events.sequence[rows] >= 0) & (events.forward_thread[rows] <= 0)
