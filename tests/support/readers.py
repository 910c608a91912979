"""Both readers on one text, and what differs between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traceq.errors import UnreadableInput
from traceq.kineto import decompression, event_windows
from traceq.kineto.columns import NO_COLUMNS
from traceq.kineto.decompression import open_source
from traceq.kineto.reader_choice import Scan, scan
from traceq.model import Events

TEXTS = {
    "label",
    "name",
    "cat",
    "pid",
    "tid",
    "grid",
    "shapes",
    "types",
    "strides",
    "inputs",
    "dtype",
    "group",
    "ranks",
    "text",
}


@contextmanager
def reading(reader: str, *, window: int = 0, chunk: int = 0) -> Iterator[None]:
    """Read with one reader; `window` and `chunk` are the sizes of its pieces where they are not its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_READER", reader)
        patch.setattr(event_windows, "_WINDOW", window or event_windows._WINDOW)
        patch.setattr(decompression, "CHUNK", chunk or decompression.CHUNK)
        yield


def outcome(path: Path) -> Scan | str:
    """What a file holds, or the one line that says why it holds nothing."""
    try:
        source = open_source(path)
    except UnreadableInput as fault:
        return str(fault)
    try:
        return scan(source)
    except UnreadableInput as fault:
        return str(fault)
    finally:
        source.close()


def assert_same(result: Scan | str, expected: Scan | str) -> None:
    """Columns, side tables, threads, metadata and damage are equal; string ids may be numbered in another order."""
    if isinstance(expected, str) or isinstance(result, str):
        assert result == expected
        return
    assert (result.damage, result.num_counters) == (expected.damage, expected.num_counters)
    assert (result.names.threads, result.names.processes) == (expected.names.threads, expected.names.processes)
    assert {key: bytes(value) for key, value in result.metadata.items()} == {
        key: bytes(value) for key, value in expected.metadata.items()
    }
    assert sorted(result.events.strings) == sorted(expected.events.strings)
    assert_same_tables(result.events, expected.events)


def assert_same_tables(result: Events, expected: Events) -> None:
    for table in ("", "messages", "stacks", "allocations", "waits", "nodes"):
        ours, theirs = (getattr(events, table) if table else events for events in (result, expected))
        for column in fields(ours):
            if column.name not in NO_COLUMNS:
                a = decoded(result, column.name, getattr(ours, column.name), bool(table))
                b = decoded(expected, column.name, getattr(theirs, column.name), bool(table))
                assert a.dtype == b.dtype, (table, column.name)
                np.testing.assert_array_equal(a, b, err_msg=f"{table}.{column.name}")


def decoded(events: Events, name: str, column: Any, is_side: bool) -> Any:
    if name not in TEXTS:
        return column
    assert column.dtype == np.int32
    return np.array([*events.strings, "<absent>"], object)[column]
