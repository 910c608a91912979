"""The op that each piece of time is the work of: the outermost contraction around it, else the innermost model."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.forward_ops import forward_op
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching, unique_names
from traceq.facts.events.nesting import Nest, host_ops, tracks
from traceq.facts.roofline.contractions import CONVOLUTION_BACKWARDS, CONVOLUTION_FORWARDS
from traceq.facts.roofline.formulas import has_formula, is_opaque_kernel, needs_values, work_of
from traceq.facts.roofline.op_calls import ITEM_BYTES, Kind, Work, dtype_in_kernel, parse_call
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

_PARTS_OF_BACKWARD = re.compile(r"convolution_backward_(input|weight)$")


@frozen(eq=False)
class Units:
    """U pieces of time: `row` int64[U] into Events; `ns`; `op` the innermost op around each, -1 without one; `kind`.

    `kind`: a TimeKind. `replay` int64[U]: the call that replayed a graph, -1 for other work: each runs its ops again.
    """

    row: NDArray[np.int64]
    ns: NDArray[np.int64]
    op: NDArray[np.int64]
    kind: NDArray[np.int64]
    replay: NDArray[np.int64]


@frozen(eq=False)
class OwningOps:
    """`owner` int64[U]: the row of Events of the op that each piece of time is the work of, -1 without a model.

    `work` int64[N]: the model of each row of Events, into `works`, -1 without one.
    """

    owner: NDArray[np.int64]
    work: NDArray[np.int64]
    works: tuple[Work, ...]


def owning_ops(trace: Trace, units: Units) -> OwningOps:
    """Return the ops with a model that pieces of time are the work of."""
    launching = sorted_unique(units.op[units.op >= 0])
    candidates, work_id, works = _works(trace, _enclosing(trace, launching, _with_formula(trace)), units)
    owner_of = _owners(trace, launching, candidates, work_id, works)
    owner = np.r_[owner_of, -1][np.where(units.op >= 0, np.searchsorted(launching, units.op), -1)]
    work = np.full(len(trace.events), -1)
    work[candidates] = work_id
    return OwningOps(owner, work, works)


def op_of_calls(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the op that the work of each call belongs to, without a model the innermost one: int64[K], -1 for none.

    The calls are rows of Events that launched no work when they were recorded, as those that a graph captures.
    """
    op, none = innermost_ops(trace, calls), np.full(len(calls), -1)
    owner = owning_ops(trace, Units(calls, none, op, none, none)).owner
    return np.where(owner >= 0, owner, op)


def climb(
    trace: Trace,
    rows: NDArray[np.int64],
    visit: Callable[[Nest, NDArray[np.int64], NDArray[np.int64]], None],
    among: NDArray[np.bool_] | None = None,
) -> None:
    """Call `visit(nest, which, index)` for each level from ops upwards: `rows[which]` is in the op at `index`.

    Only levels of the rows `among`, bool[N], where given: ops nest deep, those that matter seldom do.
    """
    for ops, which in host_ops(trace).on(tracks(trace)[rows]):
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

    climb(trace, rows, visit, among)
    return np.flatnonzero(seen)


def _with_formula(trace: Trace) -> NDArray[np.bool_]:
    """Return which rows are ops with shapes whose work may be known by their names: bool[N]."""
    ops = trace.events.rows(Category.CPU_OP)
    ops = ops[trace.events.shapes[ops] >= 0]
    has_one = np.zeros(len(trace.events), np.bool_)
    has_one[ops] = named(trace, ops, lambda name: has_formula(name) or is_opaque_kernel(name))
    return has_one


def _works(
    trace: Trace, rows: NDArray[np.int64], units: Units
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[Work, ...]]:
    """Return (those of the rows with a model; their models, into the last; the distinct models).

    Each distinct combination of name, shapes, dtypes, strides and values is parsed once.
    """
    events = trace.events
    strings = (*events.strings, "")  # -1 is absent
    values = np.where(named(trace, rows, needs_values), events.inputs[rows], -1)
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


def named(trace: Trace, rows: NDArray[np.int64], holds: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return which rows have a name for which something holds; each distinct name is asked once."""
    names, ids = unique_names(trace.events, rows)
    return np.array([holds(trace.events.strings[name]) for name in names.tolist()], np.bool_)[ids]


def _dtypes_of_lists(trace: Trace, rows: NDArray[np.int64], units: Units) -> tuple[list[str], NDArray[np.int64]]:
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
        climb(trace, rows[parts], visit)
    bare = np.flatnonzero((events.inputs[rows] < 0) & named(trace, rows, CONVOLUTION_FORWARDS.__contains__))
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
    backward = ops[named(trace, ops, CONVOLUTION_BACKWARDS.__contains__)]
    forward, number = forward_op(trace), np.full(len(backward), -1)

    def visit(nest: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        of_forward = forward[nest.rows[index]]
        new = (number[which] < 0) & (of_forward >= 0)
        number[which[new]] = events.sequence[of_forward[new]]

    climb(trace, backward, visit)
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
    """Return the op whose work each launching op is part of: rows of Events, -1 without a model.

    Under autocast a product casts its inputs and calls itself again: the casts are no part of it.
    """
    rank = np.full(len(trace.events), -1, np.int8)
    of_work = np.array([int(work.kind) for work in works], np.int8)
    rank[candidates] = of_work[work_id] if len(works) else of_work
    best, owner = np.full(len(launching), -1), np.full(len(launching), -1)
    call = np.r_[_calls(trace, candidates), -1]
    calls_itself = np.zeros(len(trace.events), np.bool_)
    calls_itself[call[candidates[call[candidates] != candidates]]] = True

    def visit(ops: Nest, which: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        row = ops.rows[index]
        is_product = rank[row] == Kind.CONTRACTION
        is_cast = is_product & calls_itself[row] & (call[owner[which]] != row)
        better = ((rank[row] > best[which]) | is_product) & ~is_cast
        best[which[better]], owner[which[better]] = rank[row[better]], row[better]

    climb(trace, launching, visit, rank >= 0)
    return np.asarray(call[owner])


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
