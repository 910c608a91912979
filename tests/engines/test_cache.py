"""The cache: private, bounded, keyed before anything is decoded, and never through a link."""

from __future__ import annotations

import os
import stat
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import pytest
from builder import op, step, write
from terminal import traceq

from traceq.engines import cache, rank_reader
from traceq.engines.cache import How, cache_entries, cache_folder, clear_cache, load_summary, store_summary
from traceq.engines.rank_reader import RankReader, SameProcess
from traceq.engines.rank_summary import RankSummary, summarize

HOW = How(strict=False, step=None)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write(tmp_path / "traces" / "rank0.json", step(0, 100), op("a", 1, 5))


def summary(trace: Path) -> RankSummary:
    result = summarize(trace, ("steps",), *HOW)
    assert isinstance(result, RankSummary)
    return result


def entry(trace: Path) -> Path:
    of_trace = cache._entry_of(trace, HOW)
    assert of_trace is not None
    return of_trace.path


def test_it_lies_in_the_users_cache_folder_and_not_among_the_traces(trace: Path, tmp_path: Path) -> None:
    store_summary(trace, summary(trace), HOW)
    assert load_summary(trace, ("steps",), HOW) == summary(trace)
    assert list(trace.parent.iterdir()) == [trace]
    assert cache_folder() == tmp_path / "cache" / "traceq"
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


def test_without_the_variable_it_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert tmp_path in cache_folder().parents


def test_a_folder_that_others_could_enter_is_closed(trace: Path) -> None:
    cache_folder().mkdir(parents=True, mode=0o777)
    cache_folder().chmod(0o777)
    assert load_summary(trace, (), HOW) is None
    store_summary(trace, summary(trace), HOW)
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


def test_a_link_is_neither_followed_nor_written(trace: Path, tmp_path: Path) -> None:
    store_summary(trace, summary(trace), HOW)
    place = entry(trace)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    assert load_summary(trace, (), HOW) is None
    store_summary(trace, summary(trace), HOW)
    assert not place.is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == before
    clear_cache()
    cache_folder().rmdir()
    (tmp_path / "target").mkdir(mode=0o700)
    cache_folder().symlink_to(tmp_path / "target")
    store_summary(trace, summary(trace), HOW)
    assert not any((tmp_path / "target").iterdir())


def test_an_entry_that_is_a_pipe_is_never_waited_for(trace: Path) -> None:
    store_summary(trace, summary(trace), HOW)
    entry(trace).unlink()
    os.mkfifo(entry(trace))
    assert load_summary(trace, (), HOW) is None


def test_a_trace_that_changes_while_it_is_read_is_not_cached(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def summarize_growing(file: Path, *arguments: Any) -> Any:
        result = summarize(file, *arguments)
        write(file, step(0, 100), op("a", 1, 5), op("b", 7, 5))
        return result

    monkeypatch.setattr(rank_reader, "summarize", summarize_growing)
    reader = RankReader(("steps",), HOW, -1, SameProcess, lambda *_: None)
    assert list(reader.read([trace]))
    assert load_summary(trace, (), HOW) is None


def use_cache(trace: Path, seed: int) -> None:
    stored, choose = summary(trace), Random(seed)
    for _ in range(60):
        use = choose.choice((store_summary, load_summary, clear_cache, cache_entries))
        if use is store_summary:
            store_summary(trace, stored, HOW)
        elif use is load_summary:
            assert load_summary(trace, ("steps",), HOW) in (None, stored)
        else:
            use()


def test_processes_that_store_read_and_clear_at_once_get_all_or_nothing(trace: Path) -> None:
    with ProcessPoolExecutor(4, get_context("fork")) as processes:
        list(processes.map(use_cache, [trace] * 4, range(4)))


def test_the_key_is_checked_before_anything_is_decoded(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_summary(trace, summary(trace), HOW)
    place = entry(trace)
    place.write_bytes(bytes(32) + place.read_bytes()[32:])

    def fail(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(cache, "unpack", fail)
    assert load_summary(trace, (), HOW) is None


def test_of_an_entry_with_another_key_no_more_than_the_key_is_read(trace: Path) -> None:
    store_summary(trace, summary(trace), HOW)
    entry(trace).write_bytes(bytes(16 << 20))
    tracemalloc.start()
    try:
        assert load_summary(trace, (), HOW) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_beyond_its_bound_the_entries_unused_for_longest_go(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [write(trace.parent / f"rank{rank}.json", step(0, 100), op("a", 1, 5)) for rank in range(6)]
    for number, each in enumerate(traces[:5]):
        store_summary(each, summary(each), HOW)
        os.utime(entry(each), (number, number))
    assert load_summary(traces[0], (), HOW) is not None  # now used last
    size = entry(traces[0]).stat().st_size
    monkeypatch.setattr(cache, "MOST_BYTES", 3 * size + size // 2)
    store_summary(traces[5], summary(traces[5]), HOW)
    assert {path for path, _ in cache_entries()} == {entry(traces[number]) for number in (0, 4, 5)}


def test_the_command_shows_and_clears_it(trace: Path) -> None:
    store_summary(trace, summary(trace), HOW)
    size = entry(trace).stat().st_size
    assert traceq("cache").out == f"{cache_folder()}: 1 entries, {size / 1024:.2f} KiB of 1.00 GiB\n"
    (cache_folder() / "other").write_text("kept")
    assert traceq("cache", "--clear").out == f"{cache_folder()}: 1 entries removed\n"
    assert [path.name for path in cache_folder().iterdir()] == ["other"]
