"""Collectives: the calls that the program issued and the kernels that execute them.

A call is a `record_param_comms` row with a name, else an annotation of the backend (`nccl:*`, `gloo:*`), else a
`c10d::*` op. gloo names a reduce-scatter `gloo:all_reduce`: there the `c10d` op is right. A kernel is never classified
by its stream or by the suffix of its name, which is that of a representative kernel.
"""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work, first_index
from traceq.facts.events.kernels import innermost_ops, is_communication
from traceq.facts.events.name_patterns import matching, rows_named, values_of_texts
from traceq.facts.events.nesting import thread_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import by_value
from traceq.intervals import measure_within, sorted_unique, span_index, spans
from traceq.model import Category, Trace

COLLECTIVE_NAMES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "send",
    "recv",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
    "unknown",
)
"""Names of the collectives, in the order of `Calls.name`."""

_RECORDED = re.compile(r"^record_param_comms$")
_ANNOTATED = re.compile(r"^(nccl|gloo|hccl|xccl):")
_DISPATCHED = re.compile(r"^c10d::")
_SYMMETRIC = re.compile(r"^symm_mem::(multimem|one_shot|two_shot)_\w*(all_reduce|all_gather|reduce_scatter)")
"""Ops of torch's symmetric memory, which is no process group: nothing else records these calls."""
_BOTH_SIDES = re.compile(r"^c10d::.*(base|into_tensor)")
_COALESCED = re.compile(r"^[nhx]ccl:coalesced$")
_NO_DATA = re.compile(r"wait|barrier|^([nhx]ccl:)?coalesced$")
_PATTERNS = (
    ("all_to_all", re.compile(r"all_?to_?all|deep_ep::|dpsk::ep::|pplx::|\ba2a_|moea2a|\bep(dispatch|combine)")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce")),
    ("all_gather", re.compile(r"all_?gather")),
    ("broadcast", re.compile(r"broadcast")),
    ("send_recv", re.compile(r"send_?recv")),
    ("send", re.compile(r"send")),
    ("recv", re.compile(r"recv")),
    ("reduce", re.compile(r"reduce")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
)
_ITEM_SIZE = {
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_GATHERS = re.compile(r"^c10d::_?all_?gather")
_SCATTERS = re.compile(r"^c10d::_?reduce_?scatter")
_GLOO_DISPATCHES = re.compile(r"^c10d::(?!.*(wait|barrier|send|recv))")
_MOST_UNFINISHED = 8


@frozen(eq=False)
class Calls:
    """C collective calls by start.

    `rows` int64[C] into Events; `issued` int64[C], the row on the issuing thread: with gloo the `c10d` op where it is
    known, else `rows`; `name` int64[C] into COLLECTIVE_NAMES; `message` int64[C] into Messages or -1; `group_size`
    int64[C] ranks; `elements`, `size` int64[C] elements and bytes of the larger side; -1 where the trace does not have
    them; `phase` int64[C], in which it was issued; `step` int64[C] into the steps, likewise, -1 between them.
    """

    rows: NDArray[np.int64]
    issued: NDArray[np.int64]
    name: NDArray[np.int64]
    message: NDArray[np.int64]
    group_size: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    phase: NDArray[np.int64]
    step: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


@frozen(eq=False)
class Kernels:
    """K device operations that execute collectives.

    `work` int64[K] into DeviceWork; `call` int64[K] into Calls, -1 without one; `name` int64[K] into COLLECTIVE_NAMES:
    from its call, else from its own arguments, else from the kernel family; `is_copy` bool[K]: a copy, of a call that
    has no kernel.
    """

    work: NDArray[np.int64]
    call: NDArray[np.int64]
    name: NDArray[np.int64]
    is_copy: NDArray[np.bool_]


@once_per_trace
def collective_calls(trace: Trace) -> Calls:
    """Return the calls that move data, from the most detailed kind of row in the trace."""
    rows, issued, name = _rows_and_names(trace)
    message = message_index(trace, rows)
    ranks = _group_sizes(trace, issued, message)
    elements = _elements(trace, rows, issued, name, ranks)
    phase = phases(trace).phase_at(tracks(trace)[issued], trace.events.ts[issued])
    step = steps(trace).issued(trace.events.ts[issued])
    return Calls(rows, issued, name, message, ranks, elements, _sizes(trace, message, elements), phase, step)


@once_per_trace
def collective_kernels(trace: Trace) -> Kernels:
    """Return the communication kernels with their calls.

    The call is the one around the launch, else the one of the same external id, else the last of the group that a
    coalesced launch ends, else one after which its thread launches the kernel next. Copies launched by a call without a
    kernel belong to that call.
    """
    work, calls, events = device_work(trace), collective_calls(trace), trace.events
    kernels = np.flatnonzero(is_communication(trace))
    call = _enclosing_call(trace, calls, work.call[kernels])
    call = np.where(
        call >= 0, call, first_index(events.external_id[calls.rows], events.external_id[work.rows[kernels]])
    )
    call = np.where(call >= 0, call, _last_call_in_group(trace, calls, work.call[kernels]))
    call = np.where(call >= 0, call, _call_just_before(trace, calls, kernels, call))
    copies, copied_call = _copies(trace, calls, call)
    is_copy = np.r_[np.zeros(len(kernels), np.bool_), np.ones(len(copies), np.bool_)]
    kernels, call = np.r_[kernels, copies], np.r_[call, copied_call]
    message = message_index(trace, work.rows[kernels])
    names = events.messages.name[message] if len(events.messages.row) else -1
    by_arguments = name_numbers(trace, np.where(message >= 0, names, -1))
    by_family = name_numbers(trace, events.name[work.rows[kernels]])
    by_family = np.where(by_family >= 0, by_family, COLLECTIVE_NAMES.index("unknown"))  # a barrier's kernel
    name = np.where(by_arguments >= 0, by_arguments, by_family)
    return Kernels(kernels, call, np.where(call >= 0, calls.name[call] if len(calls) else 0, name), is_copy)


def kernel_times(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end) ns of the kernels of each call, int64[C] each; -1 for a call without a kernel."""
    work, kernels, num = device_work(trace), collective_kernels(trace), len(collective_calls(trace))
    linked = kernels.call >= 0
    start, end = np.full(num, np.iinfo(np.int64).max), np.full(num, -1)
    np.minimum.at(start, kernels.call[linked], work.start[kernels.work[linked]])
    np.maximum.at(end, kernels.call[linked], work.end[kernels.work[linked]])
    return np.where(end >= 0, start, -1), end


def time_on_thread(trace: Trace, calls: Calls) -> NDArray[np.int64]:
    """Return the time of each call on its thread: int64[C] ns.

    A range that outlasts the op in which it begins is that of asynchronous work, which some backends leave open until
    someone waits for it: the thread is free once the op returns.
    """
    events, op = trace.events, innermost_ops(trace, calls.rows)
    end = events.end[calls.rows]
    return np.where(op >= 0, np.minimum(end, events.end[op]), end) - events.ts[calls.rows]


def _copies(trace: Trace, calls: Calls, of_kernels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (copies that execute a collective, its call): those launched by a call that launched no kernel."""
    work = device_work(trace)
    copies = np.flatnonzero((trace.events.category[work.rows] == Category.MEMCPY) & work.linked)
    call = _enclosing_call(trace, calls, work.call[copies])
    carries = (call >= 0) & ~np.isin(call, of_kernels)
    return copies[carries], call[carries]


def _last_call_in_group(trace: Trace, calls: Calls, launches: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index into Calls of the thread's last call before each launch in a `coalesced` row, else -1."""
    events, row_track, call = trace.events, tracks(trace), np.full(len(launches), -1)
    groups = thread_nests(trace, rows_named(events, _COALESCED, Category.CPU_OP, Category.ANNOTATION))
    track = np.where(launches >= 0, row_track[launches], -1)
    in_group = np.flatnonzero(groups.rows_at(track, events.ts[launches]) >= 0)
    for number, selected in by_value(track[in_group]):
        selected = in_group[selected]
        on_track = np.flatnonzero(row_track[calls.rows] == number)
        index = np.searchsorted(events.ts[calls.rows[on_track]], events.ts[launches[selected]], "right") - 1
        call[selected[index >= 0]] = on_track[index[index >= 0]]
    return call


def _call_just_before(
    trace: Trace, calls: Calls, kernels: NDArray[np.int64], of_kernels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the index into Calls of the call without a kernel after which each kernel is launched next, else -1.

    On the thread of the call, and of its family: torch 1.8 ends the range of a call before its group of NCCL launches;
    what later versions record of a call encloses them.
    """
    work, events, row_track = device_work(trace), trace.events, tracks(trace)
    launches, call = events.by_start(sorted_unique(work.call[work.linked])), np.full(len(trace.events) + 1, -1)
    without = np.setdiff1d(np.flatnonzero(matching(events, calls.rows, _ANNOTATED)), of_kernels)
    for number, selected in by_value(row_track[calls.rows[without]]):
        on_track, selected = launches[row_track[launches] == number], without[selected]
        following = np.searchsorted(events.ts[on_track], events.ts[calls.rows[selected]])
        call[np.r_[on_track, -1][following]] = selected
    call[-1] = -1  # of no launch
    index, name = call[np.where(work.linked[kernels], work.call[kernels], -1)], np.r_[calls.name, -1]
    return np.where(name[index] == name_numbers(trace, events.name[work.rows[kernels]]), index, -1)


def _rows_and_names(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows, rows that issued them, name numbers) of the calls."""
    events = trace.events
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    recorded, symmetric = (host[matching(events, host, pattern)] for pattern in (_RECORDED, _SYMMETRIC))
    message = message_index(trace, recorded)
    has_name = (message >= 0) & ((events.messages.name[message] >= 0) if len(events.messages.row) else False)
    if has_name.any():
        names = np.r_[events.messages.name[message[has_name]], events.name[symmetric]]
        rows, name = _moving_data(trace, np.r_[recorded[has_name], symmetric], names)
        if len(rows):  # of functional collectives some versions record the waits alone
            return rows, rows, name
    annotated = host[matching(events, host, _ANNOTATED)]
    candidates = np.r_[annotated if len(annotated) else host[matching(events, host, _DISPATCHED)], symmetric]
    rows, name = _moving_data(trace, candidates, events.name[candidates])
    pairs = gloo_pairs(trace, rows) if len(annotated) and trace.backend == "gloo" else None
    if pairs is None:
        return rows, rows, name
    issued, gloo_row = rows.copy(), pairs[1]
    issued[gloo_row[gloo_row >= 0]] = pairs[0][gloo_row >= 0]
    by_op = name_numbers(trace, events.name[issued])
    return rows, issued, np.where(issued != rows, by_op, name)


def _moving_data(
    trace: Trace, rows: NDArray[np.int64], name: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that move data, by start, and their name numbers."""
    number = name_numbers(trace, name)
    moves = number >= 0
    order = np.lexsort((rows[moves], trace.events.ts[rows[moves]]))
    return rows[moves][order], number[moves][order]


def name_numbers(trace: Trace, name: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return indices into COLLECTIVE_NAMES by text; -1 for waits, barriers and -1."""
    return values_of_texts(trace.events, name, name_number)


def name_number(text: str) -> int:
    """Return the index into COLLECTIVE_NAMES of any spelling of a collective; -1 for what moves no data."""
    text = text.lower()
    if _NO_DATA.search(text):
        return -1
    return next(
        (COLLECTIVE_NAMES.index(name) for name, pattern in _PATTERNS if pattern.search(text)),
        COLLECTIVE_NAMES.index("unknown"),
    )


def message_index(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index into Messages of each row, -1 without one."""
    message_rows = trace.events.messages.row
    if len(message_rows) == 0:
        return np.full(len(rows), -1)
    index = np.minimum(np.searchsorted(message_rows, rows), len(message_rows) - 1)
    return np.where(message_rows[index] == rows, index, -1)


def _elements(
    trace: Trace,
    rows: NDArray[np.int64],
    issued: NDArray[np.int64],
    name: NDArray[np.int64],
    ranks: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the elements of the larger side; an all-gather without output elements counts the inputs of all ranks."""
    by_row = _larger_side(trace, rows, name, ranks)
    by_op = _larger_side(trace, issued, name, ranks)
    lists_output = matching(trace.events, issued, _BOTH_SIDES)
    return np.where(lists_output & (by_op >= 0), by_op, by_row)


def _larger_side(
    trace: Trace, rows: NDArray[np.int64], name: NDArray[np.int64], ranks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the larger of input and output elements that each row has, -1 without either.

    Also -1 for an all-gather of which only the input is known, and not the ranks of its group.
    """
    messages, message = trace.events.messages, message_index(trace, rows)
    if len(messages.row) == 0:
        return message
    inputs, out = messages.elements_in[message], messages.elements_out[message]
    gathers = (name == COLLECTIVE_NAMES.index("all_gather")) & (out < 0) & ~matching(trace.events, rows, _BOTH_SIDES)
    gathered = np.where(ranks > 0, inputs * ranks, -1)
    larger = np.where(gathers & (inputs >= 0), gathered, np.maximum(inputs, out))
    return np.where(message >= 0, larger, -1)


def _sizes(trace: Trace, message: NDArray[np.int64], elements: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return bytes: elements times the size of their dtype; -1 where either is unknown."""
    if len(trace.events.messages.row) == 0:
        return np.full(len(message), -1)
    item = values_of_texts(trace.events, trace.events.messages.dtype, lambda dtype: _ITEM_SIZE.get(dtype, -1))
    return np.where((message >= 0) & (elements >= 0) & (item[message] > 0), elements * item[message], -1)


def _enclosing_call(trace: Trace, calls: Calls, launches: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index into Calls of the innermost call around each launch on its thread, -1 without one."""
    track = np.where(launches >= 0, tracks(trace)[launches], -1)
    row = thread_nests(trace, calls.rows).rows_at(track, trace.events.ts[launches])
    call_index = np.full(len(trace.events) + 1, -1)  # the extra last element answers row -1
    call_index[calls.rows] = np.arange(len(calls))
    return call_index[row]


def algbw_gbps(size_bytes: int | None, ns: int) -> float | None:
    """Return the bytes of the larger side divided by the time, GB/s."""
    return size_bytes / ns if size_bytes and ns else None


def busbw_gbps(algbw: float | None, name: str, num_ranks: int | None) -> float | None:
    """Return algbw times the share of the data that crosses the slowest link, GB/s."""
    if algbw is None or num_ranks is None:
        return None
    return algbw * _RING[name] * (num_ranks - 1) / num_ranks if name in _RING else algbw


def exposed_by_step(trace: Trace, selected: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[K] ns: the time of each counted window in which only these calls, indices into Calls, run."""
    pieces, calls, all_steps = activity(trace), collective_calls(trace), steps(trace)
    exposed = pieces.among(TimeCategory.EXPOSED_COMM) & in_counted_steps(trace)
    if len(device_work(trace)):
        kernels = collective_kernels(trace)
        exposed &= np.isin(pieces.owner, kernels.work[np.isin(kernels.call, selected)])
        ns = pieces.ns[exposed]
    else:
        rows = calls.rows[selected]
        carrying = spans(trace.events.ts[rows], trace.events.end[rows])
        ns = measure_within(carrying, *pieces.parts[exposed].T)
    by_step = np.bincount(span_index(all_steps.window, pieces.parts[exposed, 0]), ns, len(all_steps))
    return by_step[all_steps.counted].astype(np.int64)


def exposed_pct(trace: Trace, ns: NDArray[np.int64]) -> float:
    """Return the percentage of all exposed communication in counted steps that some of it (int64[K]) is."""
    window = steps(trace).window[steps(trace).counted]
    all_ns = measure_within(activity(trace).when(TimeCategory.EXPOSED_COMM), *window.T)
    return 100 * float(ns.sum()) / max(float(all_ns.sum()), 1.0)


def _group_sizes(trace: Trace, issued: NDArray[np.int64], message: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[C] ranks, -1 where the trace does not tell; never those of the world by assumption.

    `issued` int64[C] rows of the calls on the issuing thread, `message` int64[C] into Messages. The output of an
    all-gather is that many times its input, the input of a reduce-scatter that many times its output.
    """
    recorded = trace.events.messages.group_size
    sizes = np.where(message >= 0, recorded[message], -1) if len(recorded) else np.full(len(issued), -1)
    unknown = np.flatnonzero(sizes <= 0)
    sizes[unknown] = _by_shapes(trace, _dispatched(trace, issued[unknown]))
    return np.where(sizes > 0, sizes, trace.group_size)


def _dispatched(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the innermost `c10d` op that gathers or scatters around each row, or is it; -1 without one."""
    events, ops = trace.events, trace.events.rows(Category.CPU_OP)
    ops = ops[matching(events, ops, _GATHERS) | matching(events, ops, _SCATTERS)]
    return thread_nests(trace, ops).rows_at(tracks(trace)[rows], events.ts[rows])


def _by_shapes(trace: Trace, ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K] ranks by the shapes of `c10d` ops, rows of Events or -1; -1 where they do not tell."""
    events = trace.events
    scatters = matching(events, np.maximum(ops, 0), _SCATTERS) if len(ops) else np.zeros(0, np.bool_)
    shapes = np.where(ops >= 0, events.shapes[ops], -1)
    by_text = {text: _ratio(events.strings[text]) for text in sorted_unique(shapes).tolist() if text >= 0}
    outputs = np.array([by_text.get(text, (0, 0)) for text in shapes.tolist()], np.int64).reshape(-1, 2)
    large = np.where(scatters, outputs[:, 1], outputs[:, 0])
    small = np.where(scatters, outputs[:, 0], outputs[:, 1])
    divides = (small > 0) & (large >= small)
    sizes = np.where(divides, large // np.maximum(small, 1), -1)
    return np.where(divides & (sizes * small == large), sizes, -1)


def _ratio(shapes: str) -> tuple[int, int]:
    """Return the elements of the first and of the second input of `[[1024], [16], []]`; (0, 0) if that is not it."""
    try:
        inputs = json.loads(shapes)
        return _num_elements(inputs[0]), _num_elements(inputs[1])
    except (ValueError, TypeError, IndexError, RecursionError):
        return 0, 0


def _num_elements(shape: Any) -> int:
    """Return the number of elements of a shape, or of a list of shapes."""
    if any(isinstance(part, list) for part in shape):
        return sum(_num_elements(part) for part in shape)
    return prod(map(int, shape)) if shape else 0


def gloo_pairs(trace: Trace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return (rows of the `c10d` ops by time, index into gloo's `rows`, by start, that executed each, -1 without one).

    None where ops and rows do not pair up. A window that opens between an op and its row contains only the row, one
    that closes there only the op.
    """
    events = trace.events
    ops = events.by_start(rows_named(events, _GLOO_DISPATCHES, Category.CPU_OP, Category.ANNOTATION))
    if len(ops) == 0:
        return None
    row_start = events.ts[rows]
    num_without_op = int(np.searchsorted(row_start, events.ts[ops[0]], "left"))
    num_pairs = len(rows) - num_without_op
    if (
        not 0 <= len(ops) - num_pairs <= _MOST_UNFINISHED
        or (row_start[num_without_op:] < events.ts[ops[:num_pairs]]).any()
    ):
        return None
    ran = np.full(len(ops), -1)
    ran[:num_pairs] = np.arange(num_without_op, len(rows))
    elements_in = np.r_[events.messages.elements_in, -1]
    elements = (elements_in[message_index(trace, of)] for of in (ops[:num_pairs], rows[num_without_op:]))
    swapped = _swapped(*elements)
    ran[swapped], ran[swapped + 1] = ran[swapped + 1], ran[swapped].copy()
    return ops, ran


def _swapped(issued: NDArray[np.int64], began: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indices where two neighbours started in the other order: each has the elements of the other."""
    crosses = (issued[:-1] == began[1:]) & (issued[1:] == began[:-1]) & (issued[:-1] != began[:-1])
    return np.flatnonzero(crosses & ~np.r_[False, crosses[:-1]][: len(crosses)])
