"""Tables of many ranks are the same whichever engine reads them, and those of few ranks at a time are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, play

from traceq.engines import analyze_path
from traceq.engines.analyze_path import opened_tables
from traceq.engines.rank_reader import Engine, Result, SameProcess
from traceq.engines.workers import Cluster, Pool
from traceq.errors import UnreadableInput
from traceq.frames import NAMES
from traceq.frames.sql import ask_tables
from traceq.frames.tables import concat_ranks
from traceq.renderers.parquet import write_parquet
from traceq.runs.read import read

QUERY = "select rank, name, count(*) as num, sum(dur_ns) as ns from device_ops group by all order by all"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = play(Fleet(num_ranks=5, ranks_per_host=4, layers=1, steps=2)).write(tmp_path_factory.mktemp("fleet"))
    (made / "rank3.json.gz").write_bytes(b"no trace")
    return made


def written(folder: Path, target: Path, start: Callable[[], AbstractContextManager[Engine]]) -> dict[str, bytes]:
    target.mkdir()
    with opened_tables(folder, start=start, small=-1) as (_, tables):
        write_parquet(chain.from_iterable(tables(NAMES)), target)
    return {file.name: file.read_bytes() for file in target.iterdir()}


@pytest.mark.slow
def test_tables_are_the_same_to_the_byte_whichever_engine_reads_the_ranks(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    distributed = pytest.importorskip("distributed")
    expected = tmp_path / "memory"
    expected.mkdir()
    with opened_tables(folder, start=lambda: nullcontext(SameProcess())) as (run, tables):
        assert [len(trace.events) > 0 for trace in run.traces] == [True] * 4
        write_parquet(chain.from_iterable(tables(NAMES)), expected)
    expected_files = {file.name: file.read_bytes() for file in expected.iterdir()}
    assert {*expected_files} == {f"{name}.parquet" for name in NAMES}
    assert written(folder, tmp_path / "one", lambda: nullcontext(SameProcess())) == expected_files
    assert written(folder, tmp_path / "pool", lambda: Pool(8_000_000_000, 2)) == expected_files
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as workers:
        assert written(folder, tmp_path / "cluster", lambda: Cluster(workers.scheduler_address)) == expected_files


def test_a_query_has_one_answer_whichever_engine_reads_the_ranks(folder: Path) -> None:
    pytest.importorskip("duckdb")
    rows = []
    for small in (-1, 1 << 40):
        with opened_tables(folder, start=lambda: nullcontext(SameProcess()), small=small) as (run, tables):
            rows.append(list(ask_tables(lambda names, of=tables: concat_ranks(of(names)), QUERY).rows))
            assert [caveat.code for caveat in run.caveats] == ["unreadable_rank"]
    assert rows[0] == rows[1]
    assert {row[0] for row in rows[0]} == {trace.rank for trace in read(folder).traces}


def test_tables_of_few_ranks_are_made_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Counting(SameProcess):
        def map(
            self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
        ) -> Iterator[Result]:
            sizes.append(len(arguments))
            return super().map(function, arguments, needs)

    monkeypatch.setattr(analyze_path, "_TOGETHER", 2)
    monkeypatch.setenv("TRACEQ_CACHE", "0")
    with opened_tables(folder, start=lambda: nullcontext(Counting()), small=-1) as (_, tables):
        of_ranks = tables(("steps",))
        assert sizes == [5]  # summaries
        next(of_ranks)
        assert sizes == [5, 2]
        assert len(list(of_ranks)) == 3
        assert sizes == [5, 2, 2]


def test_what_is_no_trace_has_no_tables(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{")
    with pytest.raises(UnreadableInput), opened_tables(tmp_path, start=lambda: nullcontext(SameProcess())):
        pass
