"""Raw events to columns: strings interned, numbers int64, only complete events kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.kineto.categories import BY_NAME, categorise
from traceq.kineto.events import RawArgs, RawEvent
from traceq.kineto.messages import MessageRows
from traceq.kineto.numbers import INVALID_NS, nanoseconds
from traceq.model import Allocations, CallStacks, Category, Events

__all__ = ["DTYPES", "SIDE_TABLES", "ColumnBuilder", "Interner", "to_int"]

_NO_ARGS = RawArgs()
_LONGEST_NS = 10**18
SIDE_TABLES = ("strings", "messages", "stacks", "allocations")
"""Fields of Events that are no columns."""
_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.SYNC)
_COPY_DIRECTIONS = {"DEVICE_TO_HOST": "DtoH", "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_DEVICE": "DtoD"}


class Interner(dict[str, int]):
    """Text -> its number in order of first sight."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


def to_int(value: Any) -> int:
    """An argument as int64: numbers as strings are read, ids past int64 wrap, anything else is -1."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return (number + 2**63) % 2**64 - 2**63


def _ints(values: Sequence[Any], dtype: type) -> NDArray[Any]:
    try:
        column = np.array(values, np.int64)
        if column.ndim == 1:  # lists of one length make a table
            return column.astype(dtype, casting="same_kind")
    except (TypeError, ValueError, OverflowError):
        pass
    return np.fromiter(map(to_int, values), np.int64, len(values)).astype(dtype)


@dataclass(slots=True)
class _Sparse:
    """An integer column that only some rows carry, one batch."""

    size: int
    rows: list[int]

    def fill(self, values: Iterable[Any], dtype: type) -> NDArray[Any]:
        column: NDArray[Any] = np.full(self.size, -1, dtype)
        column[self.rows] = _ints(list(values), dtype)
        return column


@dataclass(slots=True)
class ColumnBuilder:
    """Takes windows of raw events, gives Events. `dropped` counts complete events without a usable time."""

    strings: Interner = field(default_factory=Interner)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)
    dropped: int = 0
    _chunks: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _messages: MessageRows = field(default_factory=MessageRows)
    _stacks: list[tuple[int, int]] = field(default_factory=list)
    _allocations: list[NDArray[np.int64]] = field(default_factory=list)
    _kinds: dict[tuple[str, str], int] = field(default_factory=dict)
    _size: int = 0

    def add(self, window: Sequence[RawEvent]) -> None:
        """Append the complete events of a window."""
        events = [event for event in window if event.ph == "X"]
        self._note_threads(event for event in window if event.ph == "M")
        self._note_allocations([event for event in window if event.ph == "i" and event.name == "[memory]"])
        if not events:
            return
        ts, dur = nanoseconds([e.ts for e in events]), nanoseconds([e.dur for e in events])
        sound = (ts != INVALID_NS) & (dur >= 0) & (dur <= _LONGEST_NS)
        if not sound.all():
            events = [event for event, keep in zip(events, sound.tolist(), strict=True) if keep]
            self.dropped += int((~sound).sum())
            ts, dur = ts[sound], dur[sound]
        self._append(ts=ts, dur=dur, **self._identity(events))
        self._append(**self._arguments(events, self._chunks["category"][-1]))
        self._size += len(events)

    def _append(self, **columns: NDArray[Any]) -> None:
        for name, column in columns.items():
            self._chunks.setdefault(name, []).append(column)

    def _text(self, values: Iterable[Any], count: int) -> NDArray[np.int32]:
        intern = self.strings.__getitem__
        return np.fromiter((intern(v if type(v) is str else _as_text(v)) for v in values), np.int32, count)

    def _identity(self, events: list[RawEvent]) -> dict[str, NDArray[Any]]:
        count = len(events)
        return {
            "name": self._text(map(_name, events), count),
            "cat": self._text((e.cat for e in events), count),
            "pid": self._text((e.pid for e in events), count),
            "tid": self._text((e.tid for e in events), count),
            "category": np.fromiter((self._kind(e) for e in events), np.int8, count),
        }

    def _kind(self, event: RawEvent) -> int:
        """Category code; looked up once per pair of category and name, as only 2021 needs the name."""
        cat, name = _as_text(event.cat), _as_text(event.name)
        key = (cat, name if cat in BY_NAME else "")
        if key not in self._kinds:
            self._kinds[key] = int(categorise(*key))
        return self._kinds[key]

    def _arguments(self, events: list[RawEvent], category: NDArray[np.int8]) -> dict[str, NDArray[Any]]:
        args = [event.args or _NO_ARGS for event in events]
        size = len(events)

        def of(*kinds: Category) -> list[int]:
            return np.flatnonzero(np.isin(category, kinds)).tolist()

        device, calls, host = of(*_DEVICE), of(Category.RUNTIME), of(Category.CPU_OP, Category.ANNOTATION)
        on_device, linked, on_host = _Sparse(size, device), _Sparse(size, device + calls), _Sparse(size, host)
        self._note_messages(args, events, of(Category.CPU_OP, Category.ANNOTATION, Category.KERNEL))
        self._note_stacks(args, host)
        grids = np.full(size, -1, np.int32)
        kernels = [row for row in device if args[row].grid is not None]
        grids[kernels] = self._text((_as_grid(args[row].grid) for row in kernels), len(kernels))
        shapes = np.full(size, -1, np.int32)
        shaped = [row for row in of(Category.CPU_OP) if _shapes(args[row])]
        shapes[shaped] = self._text((bytes(_shapes(args[row])).decode() for row in shaped), len(shaped))
        return {
            "grid": grids,
            "shapes": shapes,
            "device": on_device.fill((args[i].device for i in device), np.int32),
            "stream": on_device.fill((args[i].stream for i in device), np.int32),
            "bytes": on_device.fill((_size_bytes(args[i]) for i in device), np.int64),
            "correlation": linked.fill((args[i].correlation for i in device + calls), np.int64),
            "external_id": np.array(_ints([_external_id(a) for a in args], np.int64)),
            "sequence": on_host.fill((args[i].sequence for i in host), np.int64),
            "forward_thread": on_host.fill((args[i].forward_thread for i in host), np.int64),
        }

    def _note_messages(self, args: list[RawArgs], events: list[RawEvent], rows: list[int]) -> None:
        for row in rows:
            if args[row].collective is not None or _as_text(events[row].name).startswith(MessageRows.PREFIXES):
                self._messages.add(self._size + row, _as_text(events[row].name), args[row], self.strings)

    def _note_stacks(self, args: list[RawArgs], rows: list[int]) -> None:
        for row in rows:
            if args[row].call_stack:
                self._stacks.append((self._size + row, self.strings[_as_text(args[row].call_stack)]))

    def _note_allocations(self, events: list[RawEvent]) -> None:
        """Note instants that tell of memory; one without a usable time counts as dropped."""
        if not events:
            return
        ts = nanoseconds([event.ts for event in events])
        events = [event for event, time in zip(events, ts.tolist(), strict=True) if time != INVALID_NS]
        self.dropped += len(ts) - len(events)
        args = [event.args or _NO_ARGS for event in events]
        columns = [
            ts[ts != INVALID_NS],
            self._text((e.pid for e in events), len(events)),
            self._text((e.tid for e in events), len(events)),
            *(
                _ints([getattr(a, name) for a in args], np.int64)
                for name in ("memory_bytes", "allocated", "reserved", "device_type", "device_id", "address")
            ),
        ]
        self._allocations.append(np.column_stack(columns))

    def _note_threads(self, events: Iterable[RawEvent]) -> None:
        for event in events:
            self.note_thread(event)

    def note_thread(self, event: RawEvent) -> None:
        """Note the name of a thread, where a metadata event gives one."""
        if event.name == "thread_name" and event.args and event.args.label:
            self.threads[_as_text(event.pid), _as_text(event.tid)] = _as_text(event.args.label)

    def build(self) -> Events:
        """All rows so far. The builder is spent afterwards."""
        columns: dict[str, Any] = {}
        for column in fields(Events):
            if column.name not in SIDE_TABLES:
                chunks = self._chunks.pop(column.name, [])
                columns[column.name] = np.concatenate(chunks) if chunks else np.empty(0, DTYPES[column.name])
        stacks = np.array(self._stacks, np.int64).reshape(-1, 2)
        return Events(
            strings=tuple(self.strings),
            messages=self._messages.build(),
            stacks=CallStacks(row=stacks[:, 0].copy(), text=stacks[:, 1].astype(np.int32)),
            allocations=Allocations.of(np.concatenate([np.empty((0, 9), np.int64), *self._allocations])),
            **columns,
        )


DTYPES: dict[str, type] = dict.fromkeys(("name", "cat", "pid", "tid", "grid", "shapes", "device", "stream"), np.int32)
DTYPES |= dict.fromkeys(
    ("ts", "dur", "correlation", "external_id", "bytes", "sequence", "forward_thread"), np.int64
) | {"category": np.int8}


def _as_text(value: Any) -> str:
    return value if type(value) is str else "" if value is None else str(value)


def _name(event: RawEvent) -> str:
    """The event's name; an MTIA copy gets the name that every other device gives it."""
    if event.name == "dma_request" and event.args is not None:
        return f"Memcpy {_COPY_DIRECTIONS.get(_as_text(event.args.direction), 'unknown')} (dma_request)"
    return _as_text(event.name)


def _as_grid(grid: Any) -> str:
    return "x".join(map(str, grid)) if isinstance(grid, list) else str(grid)


def _shapes(args: RawArgs) -> msgspec.Raw:
    """Shapes of the inputs as the trace writes them; empty where it does not."""
    given = args.dims if _is_given(args.dims) else args.dims_2021
    return given if _is_given(given) else _NO_ARGS.dims


def _is_given(text: msgspec.Raw) -> bool:
    return len(text) > 0 and bytes(text) != b"null"


def _external_id(args: RawArgs) -> Any:
    return args.external_id if args.external_id != -1 else args.external_id_2021


def _size_bytes(args: RawArgs) -> Any:
    return args.bytes if args.bytes != -1 else args.size
