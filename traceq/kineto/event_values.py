"""Values of chosen keys, as written, of every event that lasts: for packages that have their own rules for events.

A Trace keeps what analyses need, in one form for all years and devices. Here nothing is interpreted: a value is what
`json.loads` makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.kineto.decompression import ReadBuffer, open_source
from traceq.kineto.event_windows import Document
from traceq.kineto.limits import LONGEST
from traceq.kineto.reader_choice import Damage, reader
from traceq.locations import Place

_EVENT_KEYS = ("ph", "name", "cat", "pid", "tid", "ts", "dur", "args")
MOST_ARGUMENTS = 64 - len(_EVENT_KEYS)
"""How many arguments can be read at once."""


class Kind(IntFlag):
    """What JSON has under a key: nothing, null, an integer of at most 18 digits, another number, a string, the rest."""

    ABSENT = 1
    NULL = 2
    INTEGER = 4
    DECIMAL = 8
    STRING = 16
    OTHER = 32


@dataclass(frozen=True, slots=True)
class Cells:
    """Values under one key: plain numbers (int64[K] of rows int32[K]), others as int32[M] indices of `texts`.

    Numbers are integers; of `ts` and `dur` decimals, too, in ns, if they have three digits after the point at most.
    `kinds`: of all events for the keys of an event itself, else of rows, and not ABSENT.
    """

    kinds: Kind
    number_rows: NDArray[np.int32]
    numbers: NDArray[np.int64]
    text_rows: NDArray[np.int32]
    texts: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class EventValues:
    """Values of the N events that have `dur` and `cat`, without the profiler's (`Trace`), by key.

    `index`: int32[N], place of a row among all `num_events` events of the file; `texts`: distinct values; `event_keys`:
    keys of events in the order in which the file has them first; `metadata`: the other members of the document.
    """

    num_events: int
    index: NDArray[np.int32]
    of_event: Mapping[str, Cells]
    of_arguments: Mapping[str, Cells]
    texts: Sequence[Any]
    event_keys: tuple[str, ...]
    metadata: Mapping[str, Any]


def read_event_values(path: Place, arguments: Sequence[str]) -> EventValues | None:
    """Return the values of a trace file; None if the native reader is missing, or cannot read every byte.

    At most MOST_ARGUMENTS keys of arguments. Raises UnreadableInput if there is no such file.
    """
    if reader() != "native":
        return None
    from traceq.kineto import _scan

    source = open_source(path)
    try:
        buffer = ReadBuffer(source, padding=_scan.PADDING)
        try:
            return _read(buffer, tuple(dict.fromkeys(arguments)))
        finally:
            buffer.close()
    finally:
        source.close()


def _read(buffer: ReadBuffer, arguments: tuple[str, ...]) -> EventValues | None:
    from traceq.kineto import _scan

    document, comma_due = Document(buffer), False
    scanner = _scan.ValueScanner(tuple(key.encode() for key in arguments))
    try:
        document.open()
        buffer.unread(document.release())
        while not document.done:
            status, position, comma_due = scanner.scan(buffer.buffer, buffer.start, buffer.stop, comma_due)
            buffer.skip_to(position)
            is_short = buffer.stop - buffer.start < LONGEST
            if status == _scan.MORE and is_short and buffer.read_more():
                continue
            document.resume(buffer.position, comma_due=comma_due)
            if any(document.advance()) or not document.done:
                return None
        is_whole = Damage.of(document, 0) == Damage() and not buffer.fault and "traceEvents" in document.metadata
        return _values(scanner.columns(), arguments, document.metadata) if is_whole else None
    except (UnreadableInput, ValueError):
        return None


def _values(
    columns: tuple[int, bytes, list[tuple[int, bytes, bytes, bytes, bytes]], list[bytes], list[bytes]],
    arguments: tuple[str, ...],
    metadata: Mapping[str, msgspec.Raw],
) -> EventValues:
    num_events, index, fields, texts, event_keys = columns
    cells = (
        Cells(Kind(kinds), *(np.frombuffer(part, dtype) for part, dtype in zip(parts, _DTYPES, strict=True)))
        for kinds, *parts in fields
    )
    return EventValues(
        num_events,
        np.frombuffer(index, np.int32),
        dict(zip(_EVENT_KEYS, islice(cells, len(_EVENT_KEYS)), strict=True)),
        dict(zip(arguments, cells, strict=True)),
        json.loads(b"[" + b",".join(texts) + b"]"),
        tuple(key.decode() for key in event_keys),
        {key: json.loads(bytes(text)) for key, text in metadata.items() if key != "traceEvents"},
    )


_DTYPES = (np.int32, np.int64, np.int32, np.int32)
