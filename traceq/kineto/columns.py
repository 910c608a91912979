"""Raw events to columns: strings interned, numbers int64, only complete events included.

Attributes are gathered by comprehensions, one per column, and looked up by `map` over a dict: no Python function is
called per event, except for the few events whose values are of a rare type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation, localcontext
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.kineto.categories import categorise
from traceq.kineto.collective_messages import MessageRows
from traceq.kineto.raw_events import (
    NAME_DECIDES,
    NODE_LABELS,
    CategoryCodes,
    InternedNumbers,
    InternedStrings,
    Interner,
    RawArgs,
    RawEvent,
)
from traceq.model import (
    SIDE_TABLES,
    Allocations,
    CallStacks,
    Category,
    Events,
    EventWaits,
    GraphNodes,
    Thread,
    side_table,
)

NO_COLUMNS = ("strings", *SIDE_TABLES)
"""Fields of Events that are not columns."""
_NO_ARGS = RawArgs()
_LONGEST_NS = 10**18
_COPY_DIRECTIONS = {"DEVICE_TO_HOST": "DtoH", "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_DEVICE": "DtoD"}
_encode = msgspec.json.Encoder().encode


def _mask_of(*categories: Category) -> NDArray[np.bool_]:
    mask = np.zeros(len(Category), np.bool_)
    mask[list(categories)] = True
    return mask


_ON_DEVICE = _mask_of(Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.SYNC)
_LINKED = _ON_DEVICE | _mask_of(Category.RUNTIME)
_SYNC = _mask_of(Category.SYNC)
_CPU_OP = _mask_of(Category.CPU_OP)
_ON_HOST = _mask_of(Category.CPU_OP, Category.ANNOTATION)
_WITH_MESSAGES = _ON_HOST | _mask_of(Category.KERNEL)


def to_int(value: Any) -> int:
    """Return an argument as int64: numbers in strings are parsed, ids past int64 wrap, anything else is -1."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return (number + 2**63) % 2**64 - 2**63


def _ints(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return int64[N] by `to_int`, vectorised where that gives the same values."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(to_int, values), np.int64, len(values))


@dataclass(slots=True, eq=False)
class TrackNames:
    """Names that metadata events give: of threads by (pid, tid), and (pid, name or label) of processes, in order."""

    _threads: dict[tuple[str, str], str] = field(default_factory=dict)
    _processes: dict[tuple[str, str], None] = field(default_factory=dict)

    def note(self, event: RawEvent) -> None:
        """Record what a metadata event names, if anything."""
        args = event.args or _NO_ARGS
        if event.name == "thread_name" and args.label:
            self._threads[_as_text(event.pid), _as_text(event.tid)] = _as_text(args.label)
        elif event.name in ("process_name", "process_labels") and (name := args.label or args.labels):
            self._processes[_as_text(event.pid), _as_text(name)] = None

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Threads that have names."""
        return tuple(Thread(pid, tid, name) for (pid, tid), name in self._threads.items())

    @property
    def processes(self) -> tuple[tuple[str, str], ...]:
        """(Process, its name or label), of which a process can have several."""
        return tuple(self._processes)


@dataclass(slots=True, eq=False)
class ColumnBuilder:
    """Builder of Events from windows of raw events. `dropped` counts complete events without a usable time.

    `num_counters` counts samples of counters, which are not read.
    """

    strings: Interner = field(default_factory=Interner)
    names: TrackNames = field(default_factory=TrackNames)
    dropped: int = 0
    num_counters: int = 0
    num_rows: int = 0
    _chunks: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _messages: MessageRows = field(default_factory=MessageRows)
    _stacks: list[tuple[int, int]] = field(default_factory=list)
    _allocations: list[NDArray[np.int64]] = field(default_factory=list)
    _waits: list[NDArray[np.int64]] = field(default_factory=list)
    _nodes: list[tuple[int, int, int, int]] = field(default_factory=list)
    _category_codes: CategoryCodes = field(default_factory=CategoryCodes)
    _numbers: InternedNumbers = field(init=False)
    _grids: dict[bytes, int] = field(default_factory=dict)
    _interned_json: InternedStrings = field(init=False)
    _prefixed: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._numbers, self._interned_json = InternedNumbers(self.strings), InternedStrings(self.strings)

    def add(self, window: Sequence[RawEvent]) -> None:
        """Append the complete events of a window."""
        events = [event for event in window if event.ph == "X"]
        if len(events) != len(window):
            self.num_counters += sum(event.ph == "C" for event in window)
            for event in [event for event in window if event.ph == "M"]:
                self.names.note(event)
            self._note_allocations([event for event in window if event.ph == "i" and event.name == "[memory]"])
        if not events:
            return
        times = nanoseconds([e.ts for e in events] + [e.dur for e in events])
        ts, dur = times[: len(events)], times[len(events) :]
        valid = (ts != INVALID_NS) & (dur >= 0) & (dur <= _LONGEST_NS)
        if not valid.all():
            events = [event for event, keep in zip(events, valid.tolist(), strict=True) if keep]
            self.dropped += int((~valid).sum())
            ts, dur = ts[valid], dur[valid]
        identity = self._identity(events)
        self._append(ts=ts, dur=dur, **identity, **self._arguments(events, identity["category"], identity["name"]))
        self.num_rows += len(events)

    def _append(self, **columns: NDArray[Any]) -> None:
        for name, column in columns.items():
            self._chunks.setdefault(name, []).append(column)

    def _identity(self, events: list[RawEvent]) -> dict[str, NDArray[Any]]:
        names = [e.name for e in events]
        if "dma_request" in names:
            names = [_name(e) for e in events]
        cats = [e.cat for e in events]
        if set(map(type, cats)) != {str}:
            cats = list(map(_as_text, cats))
        category = np.fromiter(map(self._category_codes.__getitem__, cats), np.int8, len(cats))
        for row in np.flatnonzero(category == NAME_DECIDES).tolist():
            category[row] = categorise(cats[row], _as_text(events[row].name))
        return {
            "name": self._texts(names),
            "cat": self._texts(cats),
            "pid": self._texts([e.pid for e in events]),
            "tid": self._texts([e.tid for e in events]),
            "category": category,
        }

    def _texts(self, values: Sequence[Any]) -> NDArray[np.int32]:
        """Return int32 string ids of values as people read them."""
        types = set(map(type, values))
        table: dict[Any, int] = self._numbers if types == {int} else self.strings
        keys = values if len(types) == 1 and types <= {int, str} else map(_as_text, values)
        return np.fromiter(map(table.__getitem__, keys), np.int32, len(values))

    def _arguments(
        self, events: list[RawEvent], category: NDArray[np.int8], names: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        args = [event.args or _NO_ARGS for event in events]
        device, linked, host, ops = (
            np.flatnonzero(mask[category]) for mask in (_ON_DEVICE, _LINKED, _ON_HOST, _CPU_OP)
        )
        device_args, linked_args, host_args, op_args = (
            [args[row] for row in rows.tolist()] for rows in (device, linked, host, ops)
        )
        self._note_messages(args, events, np.flatnonzero(_WITH_MESSAGES[category]), names)
        self._note_stacks(args, host, np.flatnonzero(category == Category.PYTHON))
        self._note_waits(args, np.flatnonzero(_SYNC[category]))
        self._note_nodes(device_args, device)

        def scatter(rows: NDArray[np.int64], values: NDArray[Any], dtype: type = np.int64) -> NDArray[Any]:
            column: NDArray[Any] = np.full(len(args), -1, dtype)
            column[rows] = values
            return column

        return {
            "grid": scatter(device, self._grid_texts([a.grid for a in device_args]), np.int32),
            "shapes": scatter(ops, self._shape_texts(op_args), np.int32),
            "types": scatter(ops, self._input_texts([a.types for a in op_args]), np.int32),
            "strides": scatter(ops, self._input_texts([a.strides for a in op_args]), np.int32),
            "inputs": scatter(ops, self._input_texts([a.inputs for a in op_args]), np.int32),
            "device": scatter(device, _ints([a.device for a in device_args]), np.int32),
            "stream": scatter(device, _ints([a.stream for a in device_args]), np.int32),
            "bytes": scatter(device, _ints([a.bytes if a.bytes != -1 else a.size for a in device_args])),
            "correlation": scatter(linked, _ints([a.correlation for a in linked_args])),
            "external_id": _ints([a.external_id if a.external_id != -1 else a.external_id_2021 for a in args]),
            "sequence": scatter(host, _ints([a.sequence for a in host_args])),
            "forward_thread": scatter(host, _ints([a.forward_thread for a in host_args])),
        }

    def _grid_texts(self, grids: Sequence[Any]) -> NDArray[np.int32]:
        """Return int32 string ids of grids, -1 for None; each distinct JSON text is formatted once."""
        id_of_json, ids = self._grids, []
        for grid in grids:
            if grid is None:
                ids.append(-1)
                continue
            key = _encode(grid)
            if key not in id_of_json:
                id_of_json[key] = self.strings[_as_grid(grid)]
            ids.append(id_of_json[key])
        return np.array(ids, np.int32)

    def _shape_texts(self, args: Sequence[RawArgs]) -> NDArray[np.int32]:
        """Return int32 string ids of input shapes as the trace writes them, under either spelling of their key."""
        texts = self._input_texts([a.dims for a in args])
        missing = np.flatnonzero(texts < 0)
        texts[missing] = self._input_texts([args[index].dims_2021 for index in missing.tolist()])
        return texts

    def _input_texts(self, values: Sequence[msgspec.Raw]) -> NDArray[np.int32]:
        """Return int32 string ids of the shapes, types, strides or values of inputs, as the trace writes them."""
        return np.fromiter(map(self._interned_json.__getitem__, map(bytes, values)), np.int32, len(values))

    def _note_messages(
        self, args: list[RawArgs], events: list[RawEvent], rows: NDArray[np.int64], names: NDArray[np.int32]
    ) -> None:
        prefixed = self._prefixed
        unseen = [*islice(reversed(self.strings), len(self.strings) - len(prefixed))]
        prefixed.extend(text.startswith(MessageRows.PREFIXES) for text in reversed(unseen))
        flags = np.frombuffer(prefixed, np.bool_)[names[rows]].tolist()
        for row, flag in zip(rows.tolist(), flags, strict=True):
            if flag or args[row].collective is not None:
                self._messages.add(self.num_rows + row, _as_text(events[row].name), args[row], self.strings)

    def _note_stacks(self, args: Sequence[RawArgs], host: NDArray[np.int64], python: NDArray[np.int64]) -> None:
        noted = [(row, args[row].call_stack) for row in host.tolist()]
        noted += [(row, args[row].call_from) for row in python.tolist()]
        self._stacks += [(self.num_rows + row, self.strings[_as_text(stack)]) for row, stack in sorted(noted) if stack]

    def _note_waits(self, args: Sequence[RawArgs], rows: NDArray[np.int64]) -> None:
        """Record which event a sync row waits for, if it names both the stream and the recording call."""
        sync_args = [args[row] for row in rows.tolist()]
        stream, record = _ints([a.wait_on_stream for a in sync_args]), _ints([a.event_record for a in sync_args])
        table = np.column_stack([self.num_rows + rows, stream, record])
        self._waits.append(table[(stream >= 0) & (record > 0)])

    def _note_nodes(self, args: Sequence[RawArgs], rows: NDArray[np.int64]) -> None:
        """Record which node of a graph device work ran, if it ran one, with its annotation."""
        graph, node = _ints([a.graph for a in args]), _ints([a.graph_node for a in args])
        for index in np.flatnonzero((graph > 0) | (node > 0)).tolist():
            text = next((_as_text(label) for label in NODE_LABELS(args[index]) if label is not None), "")
            label = self.strings[text] if text else -1
            self._nodes.append((self.num_rows + int(rows[index]), int(graph[index]), int(node[index]), label))

    def _note_allocations(self, events: list[RawEvent]) -> None:
        """Record `[memory]` instants; those without a usable time count as dropped."""
        if not events:
            return
        ts = nanoseconds([event.ts for event in events])
        events = [event for event, time in zip(events, ts.tolist(), strict=True) if time != INVALID_NS]
        self.dropped += len(ts) - len(events)
        args = [event.args or _NO_ARGS for event in events]
        columns = [
            ts[ts != INVALID_NS],
            self._texts([e.pid for e in events]),
            self._texts([e.tid for e in events]),
            *(
                _ints([getattr(a, name) for a in args])
                for name in ("memory_bytes", "allocated", "reserved", "device_type", "device_id", "address")
            ),
        ]
        self._allocations.append(np.column_stack(columns))

    def build(self) -> Events:
        """Return all rows so far; the builder must not be used afterwards."""
        columns: dict[str, Any] = {}
        for column in fields(Events):
            if column.name not in NO_COLUMNS:
                chunks = self._chunks.pop(column.name, [])
                columns[column.name] = np.concatenate(chunks) if chunks else np.empty(0, DTYPES[column.name])
        return Events(
            strings=tuple(self.strings),
            messages=self._messages.build(),
            stacks=side_table(CallStacks, np.array(self._stacks, np.int64).reshape(-1, 2)),
            allocations=side_table(Allocations, np.concatenate([np.empty((0, 9), np.int64), *self._allocations])),
            waits=side_table(EventWaits, np.concatenate([np.empty((0, 3), np.int64), *self._waits])),
            nodes=side_table(GraphNodes, np.array(self._nodes, np.int64).reshape(-1, 4)),
            **columns,
        )


DTYPES: dict[str, type] = dict.fromkeys(
    ("name", "cat", "pid", "tid", "grid", "shapes", "types", "strides", "inputs", "device", "stream"), np.int32
)
DTYPES |= dict.fromkeys(
    ("ts", "dur", "correlation", "external_id", "bytes", "sequence", "forward_thread"), np.int64
) | {"category": np.int8}


def _as_text(value: Any) -> str:
    return value if type(value) is str else "" if value is None else str(value)


def _name(event: RawEvent) -> str:
    """Return the event's name; an MTIA copy gets the name that it has on every other device."""
    if event.name == "dma_request" and event.args is not None:
        return f"Memcpy {_COPY_DIRECTIONS.get(_as_text(event.args.direction), 'unknown')} (dma_request)"
    return _as_text(event.name)


def _as_grid(grid: Any) -> str:
    return "x".join(map(str, grid)) if isinstance(grid, list) else str(grid)


INVALID_NS = np.iinfo(np.int64).min
"""Value of a number that is missing, not finite, or beyond any plausible time."""

LIMIT_NS = 10**18 * 8
"""Time from the zero of a clock, 254 years; a longest duration, 32 years, beyond it fits into int64."""

_MOST_DIGITS = 20
_MOST_DECIMALS = 18  # a larger power of ten does not fit into int64
_PLAIN = b"0123456789.\n"


def nanoseconds(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Return int64[N] ns of N JSON numbers in microseconds; INVALID_NS where a text is not such a number.

    A digit past the third decimal rounds half up.
    """
    joined = b"\n".join(texts)
    if not joined.translate(None, _PLAIN) and (values := _fixed_point(joined, len(texts))) is not None:
        return values
    return np.fromiter(map(_by_decimal, texts), np.int64, len(texts))


def _fixed_point(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """Return all numbers at once if each is digits with at most one point and fits; else None."""
    decimals = _decimals(np.frombuffer(joined, np.uint8), count)
    if decimals is None or decimals.max() > _MOST_DECIMALS:
        return None
    mantissas = np.fromstring(joined.replace(b".", b"").decode(), np.uint64, sep="\n")  # overflow saturates
    scale = (10 ** np.maximum(3 - decimals, 0)).astype(np.uint64)
    if len(mantissas) != count or (mantissas > np.uint64(LIMIT_NS) // scale).any():
        return None
    excess = (10 ** np.maximum(decimals - 3, 0)).astype(np.uint64)
    if (excess > 1).any():
        mantissas = (mantissas * scale + excess // np.uint64(2)) // excess
    else:
        mantissas *= scale
    return mantissas.astype(np.int64)


def _decimals(digits: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
    """Return int64[N] digits after the point of each number, or int64[1] for all; None if a number has two points."""
    points = np.flatnonzero(digits == ord("."))
    if len(points) == 0:
        return np.zeros(1, np.int64)
    ends = np.append(np.flatnonzero(digits == ord("\n")), len(digits))
    if len(points) == count and (points[1:] > ends[:-1]).all() and (points < ends).all():
        decimals = ends - points - 1
        return decimals[:1] if (decimals == decimals[0]).all() else decimals
    number = np.searchsorted(ends, points)
    if (np.diff(number) == 0).any():
        return None
    decimals = np.zeros(count, np.int64)
    decimals[number] = ends[number] - points - 1
    return decimals


def _by_decimal(text: bytes) -> int:
    """Return one number in ns, parsed by Decimal: strings, exponents, signs; INVALID_NS for anything else."""
    try:
        value = Decimal(bytes(text).decode().strip('"'))
    except (InvalidOperation, UnicodeDecodeError):
        return int(INVALID_NS)
    if not value.is_finite() or value.adjusted() > _MOST_DIGITS:
        return int(INVALID_NS)
    if value.adjusted() < -_MOST_DIGITS:  # also avoids expanding an exponent of a million digits
        return 0
    with localcontext(prec=len(text) + 2 * _MOST_DIGITS):
        value = value * 1000
        return int((value + Decimal("0.5")).__floor__()) if abs(value) <= LIMIT_NS else int(INVALID_NS)
