"""Stages of work: a watcher sees what is being done and how far it is, and nobody else anything."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from builder import op, step, write

from traceq.analysis.registry import analyze_all
from traceq.kineto import read as reading
from traceq.kineto.decompression import ByteSource
from traceq.kineto.reader_choice import Scan
from traceq.runs.read import read
from traceq.stages import counted, stage, watched


def test_the_innermost_stage_is_seen_and_then_the_one_around_it() -> None:
    with watched() as work:
        assert work.stage is None
        with stage("reading", lambda: 3, 10, are_bytes=True):
            seen = [(work.stage.what, work.stage.done(), work.stage.total)] if work.stage else []
            for _ in counted("analysing", "ab"):
                assert work.stage is not None
                seen.append((work.stage.what, work.stage.done(), work.stage.total))
            assert work.stage is not None
            seen.append((work.stage.what, work.stage.done(), work.stage.total))
        assert work.stage is None
    assert seen == [("reading", 3, 10), ("analysing", 0, 2), ("analysing", 1, 2), ("reading", 3, 10)]


def test_a_stage_that_fails_is_over() -> None:
    with watched() as work:
        with pytest.raises(ZeroDivisionError), stage("dividing", lambda: 0, 0):
            _ = 1 // 0
        assert work.stage is None


def test_nobody_watches_what_is_outside() -> None:
    with watched() as work:
        pass
    with stage("reading", lambda: 0, 0):
        assert work.stage is None


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_reading_tells_the_bytes_of_the_file_as_it_is_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, file, scan, seen = tmp_path / "plain.json", tmp_path / name, reading.scan, []
    write(plain, step(0, 10_000), *(op(f"aten::op{number}", number, number + 1) for number in range(9_000)))
    file.write_bytes(gzip.compress(plain.read_bytes()) if name.endswith(".gz") else plain.read_bytes())

    def scanned(source: ByteSource) -> Scan:
        assert work.stage is not None
        seen.append(work.stage.done())
        result = scan(source)
        seen.append(work.stage.done())
        return result

    monkeypatch.setattr(reading, "scan", scanned)
    with watched() as work:
        run = read(file)
        size = file.stat().st_size
        assert seen[0] < seen[1] == size
        analyze_all(run, ("steps",))
    assert work.stage is None


def test_a_closed_source_is_not_asked(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", step(0, 10))
    source = reading.open_source(tmp_path / "rank0.json")
    source.close()
    assert source.num_read() == 0
