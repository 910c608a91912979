"""Actors of a trace, to which time is charged: device work, syncs, host ops, Python, a few residual accounts.

Two traces are matched by the names of their actors: a kernel has its name without template arguments, a kernel of NCCL
that of the collective, a sync that of the op that caused it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from traceq.causes.host_line import ONCE
from traceq.facts.comm.collective_roles import ROLES, Role, collective_roles
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.copies import copy_kind
from traceq.facts.events.device_work import device_work, lacks_device_rows
from traceq.facts.events.forward_ops import RECOMPUTED, outermost_ops, recomputed_ops
from traceq.facts.events.kernel_names import kernel_family
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.name_patterns import VENDOR, matching
from traceq.facts.events.nesting import host_ops, thread_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.call_sites import Origins, origins
from traceq.facts.timeline.compilations import compilations
from traceq.facts.timeline.data_loading import loader_iterations
from traceq.facts.timeline.main_lines import differentiated_lines, main_lines
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.python_places import python_places
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import ascending
from traceq.model import Category, Trace

LAUNCHES = " > "
"""Between the name of an op and that of the work it launched."""

FOR = " for "
"""Between the name of a collective and its role."""

CAUSE_KINDS = ("sync", "collective", "kernel", "memcpy", "host")
"""Kinds of causes, in the order of `Actors.kind`."""

_SYNC, _COLLECTIVE, _KERNEL, _MEMCPY, _HOST = range(len(CAUSE_KINDS))
_RESIDUAL = (
    (_KERNEL, "launch latency"),
    (_HOST, "tail of the trace"),
    (_HOST, "data loader"),
    (_KERNEL, "work that the trace does not show"),
    (_COLLECTIVE, "barrier"),
    (_HOST, ONCE),
)
_START = "start of the loader's workers"
_COMPILATION = "torch.compile"
_INSTANCE = re.compile(r"_\d+$")
_ATEN = re.compile(r"^aten::")


@frozen(eq=False)
class Actors:
    """A actors by section.

    The sections are device work, syncs, outermost host ops by row, collective calls (only without a device), starts of
    a loader's workers, compilations, residual accounts, and places in Python where the host is in no op; `first_sync`,
    `first_op`, `first_call`, `first_start`, `first_compilation`, `first_residual`, `first_place` are their first
    indices.

    `kind` int8[A] into CAUSE_KINDS; `name`, `line`, `module` int32[A] into `texts`; `start` int64[A] ns; `phase`
    int32[A]; `happens` bool[A]: counts as an event; `bytes` int64[A] moved, 0 where not recorded. `op_rows` int64 are
    the Events rows of the host ops.
    """

    texts: tuple[str, ...]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    line: NDArray[np.int32]
    module: NDArray[np.int32]
    start: NDArray[np.int64]
    phase: NDArray[np.int32]
    happens: NDArray[np.bool_]
    bytes: NDArray[np.int64]
    first_sync: int
    first_op: int
    first_call: int
    first_start: int
    first_compilation: int
    first_residual: int
    first_place: int
    op_rows: NDArray[np.int64]

    @property
    def latency(self) -> int:
        """Actor of launch latency: launched work that waits in its queue."""
        return self.first_residual

    @property
    def tail(self) -> int:
        """Actor of the time after the last work of the trace."""
        return self.first_residual + 1

    @property
    def loader(self) -> int:
        """Actor of the time in which the host waits for the data loader."""
        return self.first_residual + 2

    @property
    def unrecorded(self) -> int:
        """Actor of the time in which the device does work that the trace does not show."""
        return self.first_residual + 3

    @property
    def barrier(self) -> int:
        """Actor of the time in a barrier, which moves no data and is no collective of the tables."""
        return self.first_residual + 4

    @property
    def once(self) -> int:
        """Actor of the time that is once."""
        return self.first_residual + 5

    @property
    def python(self) -> int:
        """Actor of the time in which the host is in no op and no Python that the trace names."""
        return self.first_place


@frozen(eq=False)
class _Section:
    """Actors of one section, with the columns of `Actors`, which are narrower."""

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    line: NDArray[np.int64]
    module: NDArray[np.int64]
    start: NDArray[np.int64]
    phase: NDArray[np.int64]
    happens: NDArray[np.bool_]
    bytes: NDArray[np.int64]


@once_per_trace
def actors(trace: Trace) -> Actors:
    """Return all actors of a trace."""
    texts: dict[str, int] = {"": 0}
    ops = _outermost_ops(trace)
    sections = (
        _device_section(trace, texts),
        _sync_section(trace, texts),
        _op_section(trace, ops, texts),
        _call_section(trace, texts),
        _start_section(trace, texts),
        _compilation_section(trace, texts),
        _residual_section(texts),
        _place_section(trace, texts),
    )
    first = np.cumsum([len(section.kind) for section in sections]).tolist()
    return Actors(
        texts=tuple(texts),
        kind=np.concatenate([section.kind for section in sections], dtype=np.int8, casting="same_kind"),
        name=_narrow([section.name for section in sections]),
        line=_narrow([section.line for section in sections]),
        module=_narrow([section.module for section in sections]),
        start=np.concatenate([section.start for section in sections]),
        phase=_narrow([section.phase for section in sections]),
        happens=np.concatenate([section.happens for section in sections]),
        bytes=np.concatenate([section.bytes for section in sections]),
        first_sync=first[0],
        first_op=first[1],
        first_call=first[2],
        first_start=first[3],
        first_compilation=first[4],
        first_residual=first[5],
        first_place=first[6],
        op_rows=ops,
    )


def _narrow(numbers: list[NDArray[np.int64]]) -> NDArray[np.int32]:
    return np.concatenate(numbers, dtype=np.int32, casting="same_kind")


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
        name[kernels.work] = _collective_names(trace, kernels.name, kernels.call, texts)
    line, module = (np.where(work.linked, column, 0) for column in _lines_and_modules(origin, texts))
    is_of_sync = np.zeros(len(work), np.bool_)
    copies = blocking_calls(trace).copy
    is_of_sync[copies[copies >= 0]] = True
    return _Section(kind, name, line, module, work.start, phases(trace).work_phase, ~is_of_sync, _bytes_moved(trace))


def _collective_names(
    trace: Trace, name: NDArray[np.int64], call: NDArray[np.int64], texts: dict[str, int]
) -> NDArray[np.int64]:
    """Return indices of names such as `all_gather for parameter gather forward`, with the role where it is known."""
    roles = np.r_[collective_roles(trace), Role.UNKNOWN]
    pairs = group([name, roles[call]])
    names = (
        COLLECTIVE_NAMES[number] + ("" if role == Role.UNKNOWN else FOR + ROLES[role].replace("_", " "))
        for number, role in pairs.keys.tolist()
    )
    return _interned(names, texts)[pairs.group_ids]


def _bytes_moved(trace: Trace) -> NDArray[np.int64]:
    """int64[D] bytes of copies, and of collectives at the first kernel of each call."""
    work = device_work(trace)
    copies = trace.events.category[work.rows] == Category.MEMCPY
    moved = np.where(copies, np.maximum(trace.events.bytes[work.rows], 0), 0)
    if is_communication(trace).any():
        kernels, calls = collective_kernels(trace), collective_calls(trace)
        called = np.flatnonzero(kernels.call >= 0)
        call, first = np.unique(kernels.call[called], return_index=True)
        moved[kernels.work[called[first]]] = np.maximum(calls.size[call], 0)
    return moved


def _device_names(
    trace: Trace, op: NDArray[np.int64], ops: tuple[str, ...], texts: dict[str, int]
) -> NDArray[np.int64]:
    """Return indices of the names by which device work is matched: `aten::mm > gemm`, the launching op first."""
    pairs = group([op, trace.events.name[device_work(trace).rows]])
    names = (
        f"{ops[number]}{LAUNCHES}{_device_name(trace.events.strings[text])}"
        if number
        else _device_name(trace.events.strings[text])
        for number, text in pairs.keys.tolist()
    )
    return _interned(names, texts)[pairs.group_ids]


def _device_name(name: str) -> str:
    if (direction := copy_kind(name).direction) != name:
        return direction
    return "Memset" if name.startswith("Memset") else kernel_family(name)


def _sync_section(trace: Trace, texts: dict[str, int]) -> _Section:
    if not len(device_work(trace)):
        empty = np.empty(0, np.int64)
        return _Section(empty, empty, empty, empty, empty, empty, np.empty(0, np.bool_), empty)
    all_syncs = syncs(trace)
    origin, strings = all_syncs.origin, trace.events.strings
    parts = group([all_syncs.kind, origin.op, trace.events.name[all_syncs.rows]])
    names = (
        f"{SYNC_KINDS[kind]} {origin.texts[op] or VENDOR.sub('', strings[call])}"
        for kind, op, call in parts.keys.tolist()
    )
    line, module = _lines_and_modules(origin, texts)
    return _Section(
        kind=np.full(len(all_syncs), _SYNC),
        name=_interned(names, texts)[parts.group_ids],
        line=line,
        module=module,
        start=all_syncs.start,
        phase=all_syncs.phase,
        happens=np.ones(len(all_syncs), np.bool_),
        bytes=all_syncs.bytes,
    )


def _outermost_ops(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the host ops that no other op encloses, and of those that a backward node recomputes.

    Where the device's rows are missing, calls of the runtime are ops like any other.
    """
    calls_too = trace.events.rows(Category.CPU_OP, Category.RUNTIME)
    nests = thread_nests(trace, calls_too) if lacks_device_rows(trace) else host_ops(trace)
    rows = [ops.rows[(ops.parent < 0) | recomputed_ops(trace)[ops.rows]] for ops in nests.values()]
    return ascending(np.concatenate(rows)) if rows else np.empty(0, np.int64)


def _op_section(trace: Trace, rows: NDArray[np.int64], texts: dict[str, int]) -> _Section:
    """Return the outermost host ops; without a device, an ATen op that reads a tensor's value counts as a sync."""
    events, track = trace.events, tracks(trace)[rows]
    begin = events.ts[rows]  # in its middle an op such as CheckpointFunction runs the layers of a model
    origin: Origins = origins(trace, track, begin, begin)
    names = group([events.name[rows], recomputed_ops(trace)[rows].astype(np.int8)])
    texts_of = (f"{events.strings[name]}{RECOMPUTED * again}" for name, again in names.keys.tolist())
    numbers = _interned(texts_of, texts)
    kind = np.full(len(rows), _HOST)
    if len(device_work(trace)) == 0:
        reads = np.isin(rows, _outermost_around(trace, syncs(trace).rows))
        kind[reads & matching(events, rows, _ATEN)] = _SYNC  # only ATen: a user's `forward` op does more than the read
    line, module = _lines_and_modules(origin, texts)
    differentiated = differentiated_lines(trace, track, begin)
    line = np.where(differentiated > 0, _interned(main_lines(trace).texts, texts)[differentiated], line)
    return _Section(
        kind=kind,
        name=numbers[names.group_ids],
        line=line,
        module=module,
        start=events.ts[rows],
        phase=phases(trace).phase_at(track, events.ts[rows]),
        happens=np.ones(len(rows), np.bool_),
        bytes=np.zeros(len(rows), np.int64),
    )


def _outermost_around(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the outermost ops around some ops."""
    row_track = tracks(trace)[rows]
    outermost = []
    for track, ops in host_ops(trace).items():
        inside = np.isin(ops.rows, rows[row_track == track])
        outermost.append(ops.rows[outermost_ops(trace, ops)[inside]])
    return np.concatenate(outermost) if outermost else np.empty(0, np.int64)


def _call_section(trace: Trace, texts: dict[str, int]) -> _Section:
    """Return collective calls, only without a device: elsewhere their kernels are charged."""
    calls = collective_calls(trace)
    chosen = np.arange(len(calls)) if len(device_work(trace)) == 0 else np.empty(0, np.int64)
    return _Section(
        kind=np.full(len(chosen), _COLLECTIVE),
        name=_collective_names(trace, calls.name[chosen], chosen, texts),
        line=np.zeros(len(chosen), np.int64),
        module=np.zeros(len(chosen), np.int64),
        start=trace.events.ts[calls.rows[chosen]],
        phase=calls.phase[chosen],
        happens=np.ones(len(chosen), np.bool_),
        bytes=np.maximum(calls.size[chosen], 0),
    )


def _start_section(trace: Trace, texts: dict[str, int]) -> _Section:
    """Return the starts of a loader's workers."""
    start = loader_iterations(trace).with_new_workers[:, 0]
    zeros = np.zeros(len(start), np.int64)
    return _Section(
        kind=np.full(len(start), _HOST),
        name=_interned([_START] * len(start), texts),
        line=zeros,
        module=zeros,
        start=start,
        phase=phases(trace).main_phase_at(start),
        happens=np.ones(len(start), np.bool_),
        bytes=zeros,
    )


def _compilation_section(trace: Trace, texts: dict[str, int]) -> _Section:
    """Return each time that a thread compiles, with the function in place of a line."""
    times = compilations(trace)
    zeros = np.zeros(len(times), np.int64)
    return _Section(
        kind=np.full(len(times), _HOST),
        name=_interned([_COMPILATION] * len(times), texts),
        line=_interned(times.functions, texts),
        module=zeros,
        start=times.start,
        phase=phases(trace).phase_at(times.track, times.start),
        happens=np.ones(len(times), np.bool_),
        bytes=zeros,
    )


def _residual_section(texts: dict[str, int]) -> _Section:
    kinds = np.array([kind for kind, _ in _RESIDUAL], np.int64)
    zeros = np.zeros(len(kinds), np.int64)
    return _uncounted(kinds, _interned((name for _, name in _RESIDUAL), texts), zeros, zeros)


def _place_section(trace: Trace, texts: dict[str, int]) -> _Section:
    """Return Python between ops, by annotation, line and module."""
    places = python_places(trace).places
    names = _interned((place.name for place in places), texts)
    lines = _interned((place.line for place in places), texts)
    modules = _interned((_INSTANCE.sub("", place.module) for place in places), texts)
    return _uncounted(np.full(len(places), _HOST), names, lines, modules)


def _uncounted(
    kind: NDArray[np.int64], name: NDArray[np.int64], line: NDArray[np.int64], module: NDArray[np.int64]
) -> _Section:
    """Return actors that count no events; their time is in the phase in which it is spent."""
    zeros = np.zeros(len(kind), np.int64)
    return _Section(kind, name, line, module, zeros, zeros, np.zeros(len(kind), np.bool_), zeros)


def _lines_and_modules(origin: Origins, texts: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices of (lines, modules without the instance number)."""
    lines = _interned(origin.texts, texts)
    classes = _interned((_INSTANCE.sub("", text) for text in origin.texts), texts)
    return lines[origin.line], classes[origin.module]


def _interned(names: Iterable[str], texts: dict[str, int]) -> NDArray[np.int64]:
    """Return the index of each name in `texts`, to which new ones are added."""
    return np.array([texts.setdefault(name, len(texts)) for name in names], np.int64)
