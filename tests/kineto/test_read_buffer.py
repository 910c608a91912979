"""An archive is decompressed by a thread: its errors reach the reader, and it ends with the reading."""

from __future__ import annotations

import gzip
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from builder import op, text

from traceq.kineto import decompression, reader_choice
from traceq.kineto.decompression import ByteSource, open_source
from traceq.kineto.reader_choice import scan

pytestmark = pytest.mark.skipif(
    bool(reader_choice.MISSING), reason=f"the native reader was not built: {reader_choice.MISSING}"
)

EVENTS = [op(f"op{i}", i, 1) for i in range(5000)]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ByteSource]:
    monkeypatch.setenv("TRACEQ_READER", "native")
    monkeypatch.setattr(decompression, "CHUNK", 1 << 12)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text(*EVENTS)))
    opened = open_source(path)
    yield opened
    opened.close()
    assert [thread.name for thread in threading.enumerate() if thread.name == "traceq-read-ahead"] == []


def after(count: int, source: ByteSource, what: Callable[[], None]) -> None:
    """Have the source do something, once, before the read that follows some."""
    real, reads = source._readinto, itertools.count()

    def readinto(buffer: memoryview) -> int:
        if next(reads) == count:
            what()
        return real(buffer)

    source._readinto = readinto


def test_the_thread_ends_with_the_reading(source: ByteSource) -> None:
    assert len(scan(source).events) == len(EVENTS)


def test_a_fault_that_nobody_foresaw_is_raised_where_the_reader_waits(source: ByteSource) -> None:
    def fail() -> None:
        raise RuntimeError("the disk is on fire")

    after(20, source, fail)
    with pytest.raises(RuntimeError, match="the disk is on fire"):
        scan(source)


def test_a_fault_of_the_archive_ends_it_there(source: ByteSource) -> None:
    def fail() -> None:
        raise OSError("input/output error")

    after(20, source, fail)
    result = scan(source)
    assert 0 < len(result.events) < len(EVENTS)
    assert result.damage.truncated_at is not None
    assert source.fault == "input/output error"


def test_an_interrupt_is_heard_while_the_thread_is_slow(source: ByteSource) -> None:
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)

    after(20, source, interrupt)
    with pytest.raises(KeyboardInterrupt):
        scan(source)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_what_is_read_lands_where_a_line_of_the_cache_starts(tmp_path: Path, name: str) -> None:
    content = text(*EVENTS)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    opened = open_source(tmp_path / name)
    places, real = [], opened._readinto

    def readinto(buffer: memoryview) -> int:
        places.append(np.frombuffer(buffer, np.uint8).ctypes.data)
        return real(buffer)

    opened._readinto = readinto
    scan(opened)
    opened.close()
    assert len(places) > 1
    assert not any(place % 64 for place in places)
