"""Collectives: calls as the program issued them, the kernels that carried them out, and which belongs to which.

A call is a `record_param_comms` row with a name, else an annotation of the backend (`nccl:*`, `gloo:*`), else a
`c10d::*` op. gloo writes a reduce-scatter as `gloo:all_reduce`: the `c10d` op tells the truth. A kernel is never
classified by its stream or by the suffix of its name, which is that of a representative kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.gloo_ops import gloo_pairs
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import nest, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.time_partition import is_communication
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["COLLECTIVE_NAMES", "Calls", "Kernels", "collective_calls", "collective_kernels", "name_number"]

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
_BOTH_SIDES = re.compile(r"^c10d::.*(base|into_tensor)")
_COALESCED = re.compile(r"^[nhx]ccl:coalesced$")
_NO_DATA = re.compile(r"wait|barrier|^([nhx]ccl:)?coalesced$")
_PATTERNS = (
    ("all_to_all", re.compile(r"all_?to_?all|deep_ep::")),
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


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """C calls by start: `rows` int64[C] into Events; `issued` int64[C], the row of the thread that issued it: with gloo
    the `c10d` op where it is known, else `rows`; `name` int64[C] into NAMES; `message` int64[C] into Messages or -1;
    `elements`, `size` int64[C] elements and bytes of the larger side, -1 where the trace does not tell; `phase`
    int64[C], in which it was issued.
    """

    rows: NDArray[np.int64]
    issued: NDArray[np.int64]
    name: NDArray[np.int64]
    message: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    phase: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """K pieces of device work that carry collectives: `work` int64[K] into DeviceWork; `call` int64[K] into Calls, -1
    without one; `name` int64[K] into NAMES: its call's, else by its own arguments, else by the family of its kernel;
    `is_copy` bool[K]: no kernel but a copy, of a call that has no kernel.
    """

    work: NDArray[np.int64]
    call: NDArray[np.int64]
    name: NDArray[np.int64]
    is_copy: NDArray[np.bool_]


@once_per_trace
def collective_calls(trace: Trace) -> Calls:
    """The calls that move data, at the best level that the trace has."""
    rows, issued, name = _identity(trace)
    message = _message_of(trace, rows)
    elements = _elements(trace, rows, issued, name)
    phase = phases(trace).on(tracks(trace)[issued], trace.events.ts[issued])
    return Calls(rows, issued, name, message, elements, _sizes(trace, message, elements), phase)


@once_per_trace
def collective_kernels(trace: Trace) -> Kernels:
    """Communication kernels with their calls: the call around the launch, else the one of the same external id, else
    the last of the group that a coalesced launch ends. Copies that a call without a kernel launched carry that call.
    """
    work, calls, events = device_work(trace), collective_calls(trace), trace.events
    kernels = np.flatnonzero(is_communication(trace))
    call = _enclosing_call(trace, calls, work.call[kernels])
    call = np.where(call >= 0, call, _call_by_external_id(trace, calls, work.rows[kernels]))
    call = np.where(call >= 0, call, _last_of_coalesced(trace, calls, work.call[kernels]))
    copies, carried = _copies(trace, calls, call)
    is_copy = np.r_[np.zeros(len(kernels), np.bool_), np.ones(len(copies), np.bool_)]
    kernels, call = np.r_[kernels, copies], np.r_[call, carried]
    own = _message_of(trace, work.rows[kernels])
    told = _named(trace, np.where(own >= 0, events.messages.name[own] if len(events.messages.row) else -1, -1))
    by_family = _named(trace, events.name[work.rows[kernels]])
    by_family = np.where(by_family >= 0, by_family, COLLECTIVE_NAMES.index("unknown"))  # a barrier's kernel
    name = np.where(told >= 0, told, by_family)
    return Kernels(kernels, call, np.where(call >= 0, calls.name[call] if len(calls) else 0, name), is_copy)


def _copies(trace: Trace, calls: Calls, of_kernels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(copies that carry a collective, its call): launched in a call that launched no kernel."""
    work = device_work(trace)
    copies = np.flatnonzero((trace.events.category[work.rows] == Category.MEMCPY) & work.linked)
    call = _enclosing_call(trace, calls, work.call[copies])
    carries = (call >= 0) & ~np.isin(call, of_kernels)
    return copies[carries], call[carries]


def _last_of_coalesced(trace: Trace, calls: Calls, launches: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into Calls of the thread's latest call before each launch that stands in a `coalesced` row, else -1."""
    events, of_row = trace.events, tracks(trace)
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    groups = host[matching(events, host, _COALESCED)]
    found = np.full(len(launches), -1)
    for track in sorted_unique(of_row[groups]).tolist():
        mine = np.flatnonzero((launches >= 0) & (of_row[launches] == track))
        around = nest(events, groups[of_row[groups] == track])
        mine = mine[around.at(events.ts[launches[mine]]) >= 0]
        own = np.flatnonzero(of_row[calls.rows] == track)
        before = np.searchsorted(events.ts[calls.rows[own]], events.ts[launches[mine]], "right") - 1
        found[mine[before >= 0]] = own[before[before >= 0]]
    return found


def _identity(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(rows, rows that issued them, names) of the calls."""
    events = trace.events
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    recorded = host[matching(events, host, _RECORDED)]
    message = _message_of(trace, recorded)
    has_name = (message >= 0) & ((events.messages.name[message] >= 0) if len(events.messages.row) else False)
    if has_name.any():
        rows, name = _moving(trace, recorded[has_name], events.messages.name[message[has_name]])
        return rows, rows, name
    annotated = host[matching(events, host, _ANNOTATED)]
    told = annotated if len(annotated) else host[matching(events, host, _DISPATCHED)]
    rows, name = _moving(trace, told, events.name[told])
    pairs = gloo_pairs(trace, rows) if len(annotated) and trace.backend == "gloo" else None
    if pairs is None:
        return rows, rows, name
    issued, ran = rows.copy(), pairs[1]
    issued[ran[ran >= 0]] = pairs[0][ran >= 0]
    by_op = _named(trace, events.name[issued])
    return rows, issued, np.where(issued != rows, by_op, name)


def _moving(
    trace: Trace, rows: NDArray[np.int64], name: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that move data, by start, with the collective each is."""
    known = _named(trace, name)
    moves = known >= 0
    order = np.lexsort((rows[moves], trace.events.ts[rows[moves]]))
    return rows[moves][order], known[moves][order]


def _named(trace: Trace, name: NDArray[np.int32]) -> NDArray[np.int64]:
    """Index into NAMES by text; -1 for waits, barriers and -1."""
    texts, inverse = np.unique(name, return_inverse=True)
    numbers = [name_number(trace.events.strings[text]) if text >= 0 else -1 for text in texts.tolist()]
    return np.array(numbers, np.int64)[inverse] if len(name) else np.empty(0, np.int64)


def name_number(text: str) -> int:
    """Index into NAMES of whatever a collective is called; -1 for what moves no data."""
    text = text.lower()
    if _NO_DATA.search(text):
        return -1
    return next(
        (COLLECTIVE_NAMES.index(name) for name, pattern in _PATTERNS if pattern.search(text)),
        COLLECTIVE_NAMES.index("unknown"),
    )


def _message_of(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into Messages of each row, -1 without one."""
    known = trace.events.messages.row
    if len(known) == 0:
        return np.full(len(rows), -1)
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, at, -1)


def _elements(
    trace: Trace, rows: NDArray[np.int64], issued: NDArray[np.int64], name: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Elements of the larger side. Where only what a rank puts into an all-gather is told, it is that of all ranks."""
    by_row = _larger_side(trace, rows, name)
    by_op = _larger_side(trace, issued, name)
    lists_output = matching(trace.events, issued, _BOTH_SIDES)
    return np.where(lists_output & (by_op >= 0), by_op, by_row)


def _larger_side(trace: Trace, rows: NDArray[np.int64], name: NDArray[np.int64]) -> NDArray[np.int64]:
    messages, message = trace.events.messages, _message_of(trace, rows)
    if len(messages.row) == 0:
        return message
    put_in, out, ranks = (c[message] for c in (messages.elements_in, messages.elements_out, messages.group_size))
    gathers = (name == COLLECTIVE_NAMES.index("all_gather")) & (out < 0) & ~matching(trace.events, rows, _BOTH_SIDES)
    gathered = put_in * np.where(ranks > 0, ranks, max(trace.world_size, 1))
    larger = np.where(gathers & (put_in >= 0), gathered, np.maximum(put_in, out))
    return np.where(message >= 0, larger, -1)


def _sizes(trace: Trace, message: NDArray[np.int64], elements: NDArray[np.int64]) -> NDArray[np.int64]:
    """Elements times their size, bytes."""
    messages, strings = trace.events.messages, trace.events.strings
    if len(messages.row) == 0:
        return np.full(len(message), -1)
    dtypes, inverse = np.unique(messages.dtype, return_inverse=True)
    item = np.array([_ITEM_SIZE.get(strings[d], -1) if d >= 0 else -1 for d in dtypes.tolist()], np.int64)[inverse]
    return np.where((message >= 0) & (elements >= 0) & (item[message] > 0), elements * item[message], -1)


def _enclosing_call(trace: Trace, calls: Calls, launches: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into Calls of the call open on the launching thread at each launch, -1 where none is."""
    found = np.full(len(launches), -1)
    index = np.full(len(trace.events), -1)
    index[calls.rows] = np.arange(len(calls))
    of_row = tracks(trace)
    for track in sorted_unique(of_row[calls.rows]):
        inside = nest(trace.events, calls.rows[of_row[calls.rows] == track])
        mine = np.flatnonzero((launches >= 0) & (of_row[launches] == track))
        at = inside.at(trace.events.ts[launches[mine]])
        found[mine[at >= 0]] = index[inside.rows[at[at >= 0]]]
    return found


def _call_by_external_id(trace: Trace, calls: Calls, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    ids = trace.events.external_id[calls.rows]
    order = np.argsort(ids, kind="stable")
    if len(ids) == 0:
        return np.full(len(rows), -1)
    wanted = trace.events.external_id[rows]
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    return np.where((wanted > 0) & (ids[order][at] == wanted), order[at], -1)
