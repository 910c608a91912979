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

from traceq.links.activity import is_communication
from traceq.links.launches import device_work
from traceq.links.memo import once_per_trace
from traceq.links.names import matching
from traceq.links.nesting import nest, tracks
from traceq.links.phases import phases
from traceq.model import Category, Trace

__all__ = ["NAMES", "Calls", "Kernels", "collective_calls", "collective_kernels", "name_number"]

NAMES = (
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
_NO_DATA = re.compile(r"wait|barrier|^([nhx]ccl:)?coalesced$")
_PATTERNS = (
    ("all_to_all", re.compile(r"all_?to_?all")),
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
    """C calls by start: `rows` int64[C] into Events; `name` int64[C] into NAMES; `message` int64[C] into Messages or
    -1; `size` int64[C] bytes of the larger side, -1 where the trace does not tell; `phase` int64[C]."""

    rows: NDArray[np.int64]
    name: NDArray[np.int64]
    message: NDArray[np.int64]
    size: NDArray[np.int64]
    phase: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """Communication kernels: `work` int64[K] into DeviceWork; `call` int64[K] into Calls, -1 without one; `name`
    int64[K] into NAMES: its call's, else by its own arguments, else by the family of its kernel."""

    work: NDArray[np.int64]
    call: NDArray[np.int64]
    name: NDArray[np.int64]


@once_per_trace
def collective_calls(trace: Trace) -> Calls:
    """The calls that move data, at the best level that the trace has."""
    events = trace.events
    rows, name = _identity(trace)
    message = _message_of(trace, rows)
    return Calls(rows, name, message, _sizes(trace, message), phases(trace).on(tracks(trace)[rows], events.ts[rows]))


@once_per_trace
def collective_kernels(trace: Trace) -> Kernels:
    """Communication kernels with their calls: the call around the launch, else the one of the same external id."""
    work, calls, events = device_work(trace), collective_calls(trace), trace.events
    kernels = np.flatnonzero(is_communication(trace))
    call = _enclosing_call(trace, calls, work.call[kernels])
    by_id = _call_by_external_id(trace, calls, work.rows[kernels])
    call = np.where(call >= 0, call, by_id)
    own = _message_of(trace, work.rows[kernels])
    told = _named(trace, np.where(own >= 0, events.messages.name[own] if len(events.messages.row) else -1, -1))
    by_family = _named(trace, events.name[work.rows[kernels]])
    name = np.where(own >= 0, told, by_family)
    return Kernels(kernels, call, np.where(call >= 0, calls.name[call] if len(calls) else 0, name))


def _identity(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows, names) of the calls."""
    events = trace.events
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    recorded = host[matching(events, host, _RECORDED)]
    message = _message_of(trace, recorded)
    has_name = (message >= 0) & ((events.messages.name[message] >= 0) if len(events.messages.row) else False)
    if has_name.any():
        rows = recorded[has_name]
        return _moving(trace, rows, events.messages.name[message[has_name]])
    dispatched = host[matching(events, host, _DISPATCHED)]
    ops = _moving(trace, dispatched, events.name[dispatched])
    annotated = host[matching(events, host, _ANNOTATED)]
    if len(annotated) == 0:
        return ops
    rows, name = _moving(trace, annotated, events.name[annotated])
    return rows, (ops[1] if trace.backend == "gloo" and len(ops[0]) == len(rows) else name)


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
    distinct, inverse = np.unique(name, return_inverse=True)
    numbers = [name_number(trace.events.strings[text]) if text >= 0 else -1 for text in distinct.tolist()]
    return np.array(numbers, np.int64)[inverse] if len(name) else np.empty(0, np.int64)


def name_number(text: str) -> int:
    """Index into NAMES of whatever a collective is called; -1 for what moves no data."""
    text = text.lower()
    if _NO_DATA.search(text):
        return -1
    return next((NAMES.index(name) for name, pattern in _PATTERNS if pattern.search(text)), NAMES.index("unknown"))


def _message_of(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into Messages of each row, -1 without one."""
    known = trace.events.messages.row
    if len(known) == 0:
        return np.full(len(rows), -1)
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, at, -1)


def _sizes(trace: Trace, message: NDArray[np.int64]) -> NDArray[np.int64]:
    """max(in, out) elements times their size, bytes."""
    messages, strings = trace.events.messages, trace.events.strings
    if len(messages.row) == 0:
        return np.full(len(message), -1)
    elements = np.maximum(messages.elements_in, messages.elements_out)
    dtypes, inverse = np.unique(messages.dtype, return_inverse=True)
    item = np.array([_ITEM_SIZE.get(strings[d], -1) if d >= 0 else -1 for d in dtypes.tolist()], np.int64)[inverse]
    size = np.where((elements >= 0) & (item > 0), elements * item, -1)
    return np.where(message >= 0, size[message], -1)


def _enclosing_call(trace: Trace, calls: Calls, launches: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into Calls of the call open on the launching thread at each launch, -1 where none is."""
    found = np.full(len(launches), -1)
    index = np.full(len(trace.events), -1)
    index[calls.rows] = np.arange(len(calls))
    of_row = tracks(trace)
    for track in np.unique(of_row[calls.rows]):
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
