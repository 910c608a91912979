"""Everything in a trace that time can be charged to: device work, syncs, host ops, and a few residual accounts.

Names are those under which two traces are matched: a kernel goes by its name without template arguments, nccl's by the
collective, a sync by the op that asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.links.activity import is_communication
from traceq.links.blocking import blocking_calls
from traceq.links.collectives import NAMES, collective_calls, collective_kernels
from traceq.links.launches import device_work
from traceq.links.memo import once_per_trace
from traceq.links.names import matching
from traceq.links.nesting import host_ops, tracks
from traceq.links.origins import Origins, origins
from traceq.links.phases import phases
from traceq.links.syncs import KINDS as SYNC_KINDS
from traceq.links.syncs import syncs
from traceq.model import Category, Trace

__all__ = ["KINDS", "LAUNCHES", "Actors", "actors", "kernel_name"]

LAUNCHES = " > "
"""Between the name of an op and that of what it launched."""

KINDS = ("sync", "collective", "kernel", "memcpy", "host")
"""Kinds of causes, in the order of `Actors.kind`."""

_SYNC, _COLLECTIVE, _KERNEL, _MEMCPY, _HOST = range(len(KINDS))
_RESIDUAL = (
    (_KERNEL, "launch latency"),
    (_HOST, "tail of the trace"),
    (_HOST, "Python between ops"),
    (_HOST, "data loader"),
)
_NCCL = re.compile(r"^nccl(Dev|Sym|SymDev|Symk|SymkDev)?Kernel_(?P<name>[A-Za-z]+)")
_ATEN = re.compile(r"^aten::")
_VENDOR = re.compile(r"^(cuda|hip|cu)(?=[A-Z])")
_COPY = re.compile(r"^Memcpy (?P<kind>[A-Za-z]+to[A-Za-z]+)")


@dataclass(frozen=True, slots=True, eq=False)
class Actors:
    """A actors: device work first, then syncs, then outermost host ops by row, then calls of collectives (where there
    is no device), then the residual accounts.

    `kind` int64[A] into KINDS; `name`, `line` int64[A] into `texts`; `start` int64[A] ns; `phase` int64[A]; `happens`
    bool[A]: counts as an event of its own. `first_sync`, `first_op`, `first_call`, `first_residual` say where each
    section begins; `op_rows` int64 are the Events rows of the host ops.
    """

    texts: tuple[str, ...]
    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    line: NDArray[np.int64]
    start: NDArray[np.int64]
    phase: NDArray[np.int64]
    happens: NDArray[np.bool_]
    first_sync: int
    first_op: int
    first_call: int
    op_rows: NDArray[np.int64]

    @property
    def latency(self) -> int:
        """Work that is launched and waits in a queue."""
        return len(self.kind) - 4

    @property
    def tail(self) -> int:
        """After the last work of the trace."""
        return len(self.kind) - 3

    @property
    def python(self) -> int:
        """The host is in no op."""
        return len(self.kind) - 2

    @property
    def loader(self) -> int:
        """The host waits for the data loader."""
        return len(self.kind) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Section:
    """Actors of one sort; `name` and `line` already as texts' numbers."""

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    line: NDArray[np.int64]
    start: NDArray[np.int64]
    phase: NDArray[np.int64]
    happens: NDArray[np.bool_]


@once_per_trace
def actors(trace: Trace) -> Actors:
    """All actors of a trace."""
    texts: dict[str, int] = {"": 0}
    ops = _outermost_ops(trace)
    sections = (
        _device_section(trace, texts),
        _sync_section(trace, texts),
        _op_section(trace, ops, texts),
        _call_section(trace, texts),
        _residual_section(texts),
    )
    first = np.cumsum([len(section.kind) for section in sections]).tolist()
    return Actors(
        texts=tuple(texts),
        kind=np.concatenate([section.kind for section in sections]),
        name=np.concatenate([section.name for section in sections]),
        line=np.concatenate([section.line for section in sections]),
        start=np.concatenate([section.start for section in sections]),
        phase=np.concatenate([section.phase for section in sections]),
        happens=np.concatenate([section.happens for section in sections]),
        first_sync=first[0],
        first_op=first[1],
        first_call=first[2],
        op_rows=ops,
    )


def kernel_name(name: str) -> str:
    """A kernel's name without return type, template arguments, arguments and nccl's changing prefix."""
    found = _NCCL.match(name)
    if found:
        return f"nccl {found['name']}"
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0] or name


def _device_section(trace: Trace, texts: dict[str, int]) -> _Section:
    events, work = trace.events, device_work(trace)
    category = events.category[work.rows]
    kind = np.where(category == Category.KERNEL, _KERNEL, _MEMCPY)
    call = work.call
    origin = origins(trace, tracks(trace)[call], events.ts[call], events.end[call], rows=call)
    name = _device_names(trace, np.where(work.linked, origin.op, 0), origin.texts, texts)
    if is_communication(trace).any():
        kernels = collective_kernels(trace)
        kind[kernels.work] = _COLLECTIVE
        name[kernels.work] = _numbers(NAMES, texts)[kernels.name]
    line = np.where(work.linked, _numbers(origin.texts, texts)[origin.line], 0)
    of_syncs = np.zeros(len(work), np.bool_)
    copies = blocking_calls(trace).copy
    of_syncs[copies[copies >= 0]] = True
    return _Section(kind, name, line, work.start, phases(trace).of_work, ~of_syncs)


def _device_names(
    trace: Trace, op: NDArray[np.int64], ops: tuple[str, ...], texts: dict[str, int]
) -> NDArray[np.int64]:
    """Numbers of the names under which device work is matched: `aten::mm > gemm`, the op that launched it first."""
    pairs = np.column_stack([op, trace.events.name[device_work(trace).rows]])
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    names = (
        f"{ops[number]}{LAUNCHES}{_device_name(trace.events.strings[text])}"
        if number
        else _device_name(trace.events.strings[text])
        for number, text in distinct.tolist()
    )
    return _numbers(names, texts)[inverse.reshape(-1)] if len(pairs) else np.empty(0, np.int64)


def _device_name(name: str) -> str:
    if found := _COPY.match(name):
        return found["kind"]
    return "Memset" if name.startswith("Memset") else kernel_name(name)


def _sync_section(trace: Trace, texts: dict[str, int]) -> _Section:
    found = syncs(trace) if len(device_work(trace)) else None
    if found is None:
        nothing = np.empty(0, np.int64)
        return _Section(nothing, nothing, nothing, nothing, nothing, np.empty(0, np.bool_))
    origin, strings = found.origin, trace.events.strings
    words = np.column_stack([found.kind.astype(np.int64), origin.op, trace.events.name[found.rows]])
    distinct, inverse = np.unique(words, axis=0, return_inverse=True)
    names = (
        f"{SYNC_KINDS[kind]} {origin.texts[op] or _VENDOR.sub('', strings[call])}"
        for kind, op, call in distinct.tolist()
    )
    return _Section(
        kind=np.full(len(found), _SYNC),
        name=_numbers(names, texts)[inverse.reshape(-1)],
        line=_numbers(origin.texts, texts)[origin.line],
        start=found.start,
        phase=found.phase,
        happens=np.ones(len(found), np.bool_),
    )


def _outermost_ops(trace: Trace) -> NDArray[np.int64]:
    """Rows of the host ops that stand in no other op."""
    rows = [ops.rows[ops.parent < 0] for ops in host_ops(trace).values()]
    return np.sort(np.concatenate(rows)) if rows else np.empty(0, np.int64)


def _op_section(trace: Trace, rows: NDArray[np.int64], texts: dict[str, int]) -> _Section:
    """Outermost host ops; without a device one of PyTorch's own that reads a tensor's value counts as a sync."""
    events, track = trace.events, tracks(trace)[rows]
    origin: Origins = origins(trace, track, events.ts[rows], events.end[rows])
    names, inverse = np.unique(events.name[rows], return_inverse=True)
    numbers = _numbers((events.strings[name] for name in names.tolist()), texts)
    kind = np.full(len(rows), _HOST)
    if len(device_work(trace)) == 0:
        reads = np.isin(rows, _around(trace, syncs(trace).rows))
        kind[reads & matching(events, rows, _ATEN)] = _SYNC  # a whole `forward` that reads a value somewhere does more
    return _Section(
        kind=kind,
        name=numbers[inverse] if len(rows) else np.empty(0, np.int64),
        line=_numbers(origin.texts, texts)[origin.line],
        start=events.ts[rows],
        phase=phases(trace).on(track, events.ts[rows]),
        happens=np.ones(len(rows), np.bool_),
    )


def _around(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of the outermost ops around some ops."""
    of_row = tracks(trace)[rows]
    found = []
    for number, ops in host_ops(trace).items():
        inside = np.isin(ops.rows, rows[of_row == number])
        found.append(ops.rows[ops.top()[inside]])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _call_section(trace: Trace, texts: dict[str, int]) -> _Section:
    """Calls of collectives, where their own threads are all there is to see of them."""
    calls = collective_calls(trace)
    chosen = np.arange(len(calls)) if len(device_work(trace)) == 0 else np.empty(0, np.int64)
    return _Section(
        kind=np.full(len(chosen), _COLLECTIVE),
        name=_numbers(NAMES, texts)[calls.name[chosen]],
        line=np.zeros(len(chosen), np.int64),
        start=trace.events.ts[calls.rows[chosen]],
        phase=calls.phase[chosen],
        happens=np.ones(len(chosen), np.bool_),
    )


def _residual_section(texts: dict[str, int]) -> _Section:
    count = len(_RESIDUAL)
    nothing = np.zeros(count, np.int64)
    kinds = np.array([kind for kind, _ in _RESIDUAL], np.int64)
    return _Section(
        kinds, _numbers((name for _, name in _RESIDUAL), texts), nothing, nothing, nothing, np.zeros(count, np.bool_)
    )


def _numbers(words: Iterable[str], texts: dict[str, int]) -> NDArray[np.int64]:
    """Numbers of some texts, old or new."""
    return np.array([texts.setdefault(word, len(texts)) for word in words], np.int64)
