"""Two threads scan one trace: what the second one finds counts where the first one's events end at its start."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import kernel, memory, op, text
from readers import assert_same, outcome, reading

from traceq.errors import UsageFault
from traceq.kineto import native_reader
from traceq.kineto.native_columns import NativeColumns
from traceq.kineto.reader_choice import threads
from traceq.kineto.scan_result import Scan

pytestmark = pytest.mark.skipif(
    bool(native_reader.MISSING), reason=f"the native reader was not built: {native_reader.MISSING}"
)


def read_by_two(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Scan | str, int, int]:
    """What two threads find, and how many parts of the second one were taken and forgotten."""
    calls = {"move_from": 0, "__init__": 0}
    for name in calls:
        real = getattr(NativeColumns, name)

        def counted(columns: NativeColumns, *args: object, name: str = name, real: object = real) -> None:
            calls[name] += 1
            real(columns, *args)  # type: ignore[operator]

        monkeypatch.setattr(NativeColumns, name, counted)
    with reading("native", window=1 << 9, chunk=1 << 9, threads=2):
        return outcome(path), calls["move_from"], calls["__init__"] - 2


def test_half_of_a_sound_trace_is_the_second_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    rows = [kernel(f"k{i % 40}", i, 2, i, grid=[i % 9, 2, 1]) for i in range(2000)]
    path.write_bytes(text(*rows, *(memory(5000 + i, 8, 8, 64) for i in range(500))))
    result, taken, forgotten = read_by_two(path, monkeypatch)
    with reading("native"):
        alone = outcome(path)
    assert isinstance(result, Scan)
    assert isinstance(alone, Scan)
    assert_same(result, alone)
    assert result.events.strings == alone.events.strings
    chunks = path.stat().st_size / (8 << 9)
    assert forgotten == 0
    assert taken == pytest.approx(chunks / 2, abs=2)


def test_what_only_looks_like_an_event_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    inside = [op("no event", 7, 7)] * 30  # starts as events do, and is longer than a chunk
    path.write_bytes(text(*(op(f"op{i}", i, 1, detail=inside) for i in range(300))))
    result, _, forgotten = read_by_two(path, monkeypatch)
    assert isinstance(result, Scan)
    assert forgotten > 0
    assert len(result.events) == 300
    assert "no event" not in result.events.strings
    assert result.damage.commas_at == ()


def test_a_trace_has_one_scanning_thread_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads() == 1
    monkeypatch.setenv("TRACEQ_THREADS", "2")
    assert threads() == 2
    monkeypatch.setenv("TRACEQ_THREADS", "many")
    with pytest.raises(UsageFault, match="expected 1 or 2 threads"):
        threads()
