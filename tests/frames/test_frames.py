"""Tables of a run: one row for each thing, the same numbers as the analyses, whatever program reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from builder import annotation, build, call, comms, kernel, launch, memcpy, op, step, table, write
from paths import ROOT
from terminal import traceq as traceq_command
from typer.testing import CliRunner

import traceq
from traceq.cli import app
from traceq.errors import TraceqError, UsageFault
from traceq.frames import NAMES, Frame, Texts, ask, frame, frames
from traceq.model import Run

CATALOGUE = ROOT.parent / "shared" / "traces"
DOCS = (ROOT / "docs" / "query.md").read_text()
TRACE = build(
    step(0, 100, 7),
    annotation("forward", 0, 60),
    annotation("backward", 60, 40),
    op("aten::mm", 1, 6),
    launch(2, 3, corr=1),
    kernel("gemm", 10, 30, corr=1),
    op("aten::item", 45, 15),
    call("cudaMemcpyAsync", 46, 2, corr=2),
    call("cudaStreamSynchronize", 49, 10, corr=3),
    memcpy("DtoH (Device -> Pinned)", 50, 2, corr=2, size=4),
    op("c10d::allreduce_", 61, 8),
    comms("allreduce", 62, 6, (1000, 1000)),
    launch(63, 2, corr=4),
    launch(66, 2, corr=5),
    kernel("tiny", 100, 1, corr=5),
    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 70, 30, corr=4),
    distributedInfo={"backend": "nccl", "rank": 2, "world_size": 4},
)
RUN = Run("here", (TRACE,))


def rows(run: Run, sql: str) -> list[tuple[object, ...]]:
    pytest.importorskip("duckdb")
    return list(ask(run, sql).rows)


def only_row(sql: str) -> dict[str, object]:
    pytest.importorskip("duckdb")
    answer = ask(RUN, sql)
    (row,) = answer.rows
    return dict(zip(answer.columns, row, strict=True))


def test_a_sync_is_a_row_with_its_op_phase_and_step() -> None:
    sync = only_row("from syncs")
    place = {"rank": 2, "op": "aten::item", "line": None, "phase": "forward", "step": 7}
    assert sync == sync | place | {"kind": "dtoh", "blocked_ns": 13_000, "wait_ns": 6_000, "bytes": 4}


def test_a_collective_is_a_row_with_its_kernels_time() -> None:
    collective = only_row("from collectives")
    exchanged = {"name": "all_reduce", "dtype": "float32", "group_size": 4, "bytes": 4000}
    assert collective == collective | exchanged | {"phase": "backward", "num_kernels": 1, "gpu_ns": 30_000}


def test_device_ops_join_their_launches_and_events() -> None:
    requested = """select k.name, k.phase, l.until_begun_ns, e.name from device_ops k
        join launches l on k.launch_row = l.row join events e on e.row = l.row
        where k.name != 'tiny' order by k.start_ns"""
    assert rows(RUN, requested) == [
        ("gemm", "forward", 8_000, "cudaLaunchKernel"),
        ("Memcpy DtoH (Device -> Pinned)", "forward", 4_000, "cudaMemcpyAsync"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "backward", 7_000, "cudaLaunchKernel"),
    ]


def test_the_partition_sums_to_what_the_analysis_says() -> None:
    result = dict(rows(RUN, "select category, sum(dur_ns) from partition where step = 7 group by 1"))
    expected: dict[str, int] = {}
    for line in table(RUN, "partition"):
        expected[line["category"]] = expected.get(line["category"], 0) + line["dur_ns"]
    assert result == expected


def test_ranks_stand_below_each_other() -> None:
    other = build(step(0, 50), op("aten::relu", 1, 2), distributedInfo={"backend": "nccl", "rank": 3, "world_size": 4})
    both = Run("here", (TRACE, other))
    named = set(rows(both, "select rank, name from events"))
    assert named >= {(2, "aten::mm"), (3, "aten::relu")}
    assert named.isdisjoint({(3, "aten::mm"), (2, "aten::relu")})
    assert rows(both, "select count(*) from events") == [(len(TRACE.events) + 2,)]


def test_a_text_column_is_text_even_where_nothing_is_known() -> None:
    kinds = dict(rows(RUN, "select column_name, column_type from (describe syncs)"))
    assert {kinds[name] for name in ("kind", "op", "line", "module", "phase")} == {"VARCHAR"}


@pytest.mark.parametrize("name", NAMES)
def test_the_docs_name_every_column(name: str) -> None:
    [line] = re.findall(rf"^\| `{name}` \|.*\| ([a-z_, ]+) \|$", DOCS, re.MULTILINE)
    assert ["rank", *line.split(", ")] == list(frame(RUN, name).columns)


RECIPES = re.findall(r"^```sql\n(.*?)```", DOCS, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("sql", RECIPES)
def test_every_recipe_of_the_docs_has_an_answer(sql: str) -> None:
    assert len(RECIPES) == 6
    assert rows(RUN, sql)


@pytest.mark.skipif(not CATALOGUE.exists(), reason="../shared/traces is absent")
def test_of_a_real_trace_sql_sums_what_show_sums() -> None:
    run = traceq.read(CATALOGUE / "ddp-a100")
    [(num, gpu_ns, size)] = rows(run, "select count(*), sum(gpu_ns), sum(bytes) from collectives")
    shown = table(run, "collectives")
    assert num == sum(row["num"] for row in shown)
    assert gpu_ns == sum(row["gpu_ns"] for row in shown)
    assert size == sum(row["bytes"] for row in shown)


def test_arrow_pandas_free_and_numpy_hold_the_same() -> None:
    pytest.importorskip("pyarrow")
    for result in frames(RUN):
        held = result.to_arrow().to_pydict()
        assert held == {name: column.tolist() for name, column in result.to_numpy().items()}


def test_a_column_of_texts_gives_none_where_there_is_none() -> None:
    assert Texts(np.array([1, -1, 0]), ("a", "b")).values.tolist() == ["b", None, "a"]


def test_a_package_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(TraceqError, match="pip install polars"):
        Frame("x", {}).to_polars()


@pytest.mark.parametrize(("sql", "printed"), [("selec 1", "syntax error"), ("select nothing from syncs", "nothing")])
def test_wrong_sql_is_one_line(sql: str, printed: str) -> None:
    with pytest.raises(UsageFault, match=printed) as fault:
        rows(RUN, sql)
    assert "\n" not in str(fault.value)


def test_the_command_prints_a_table_or_a_json_object_a_line(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    path = write(tmp_path / "trace.json", step(0, 100, 7), op("aten::mm", 1, 6), op("aten::mm", 20, 6))
    requested = ["query", str(path), "select name, count(*) as num, 0.5 as half from events group by 1 order by 1"]
    done = CliRunner().invoke(app, requested, catch_exceptions=False)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["name", "num", "half"],
        ["ProfilerStep#7", "1", "0.50"],
        ["aten::mm", "2", "0.50"],
    ]
    done = CliRunner().invoke(app, [*requested, "--json"], catch_exceptions=False)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"name": "ProfilerStep#7", "num": 1, "half": 0.5},
        {"name": "aten::mm", "num": 2, "half": 0.5},
    ]


def test_tables_are_written_as_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "trace.json", step(0, 100, 7), op("aten::mm", 1, 6))
    done = CliRunner().invoke(app, ["export", "trace.json", "--to", "parquet"], catch_exceptions=False)
    assert done.stdout == "trace.parquet\n"
    assert sorted(file.stem for file in (tmp_path / "trace.parquet").iterdir()) == sorted(NAMES)
    assert parquet.read_table(tmp_path / "trace.parquet" / "events.parquet").column("name").to_pylist() == [
        "ProfilerStep#7",
        "aten::mm",
    ]


@pytest.mark.parametrize(
    ("sql", "printed"),
    [
        ("select 'nan'::double a, -'inf'::double b", ["nan", "-inf"]),
        ("select timestamp '2026-01-02 03:04:05' as a, date '2026-01-02' as b", ["2026-01-02 03:04:05", "2026-01-02"]),
        ("select 123456789012345678901234567890::hugeint as a, 1 as b", ["123456789012345678901234567890", "1"]),
        ("select [1, 2] as a, interval 1 day as b", ["[1, 2]", "1 day, 0:00:00"]),
        ("select true as a, null as b", ["yes"]),
    ],
)
def test_every_type_of_value_prints(sql: str, printed: list[str], tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", step(0, 100))
    outcome = traceq_command("query", trace, sql)
    assert (outcome.code, outcome.err) == (0, "")
    assert re.split(r"  +", outcome.out.splitlines()[1].strip()) == printed
    assert list(json.loads(traceq_command("query", trace, sql, "--json").out)) == ["a", "b"]


@pytest.mark.parametrize("sql", ["", " ; ", "-- nothing"])
def test_an_empty_statement_is_one_line(sql: str) -> None:
    pytest.importorskip("duckdb")
    with pytest.raises(UsageFault, match="SQL: no statement; expected"):
        ask(RUN, sql)


def test_columns_of_one_name_are_all_there() -> None:
    pytest.importorskip("duckdb")
    answer = ask(RUN, "select 1 as a, 2 as a, 3 as a_1, 4 as a")
    assert list(zip(answer.columns, *answer.rows, strict=True)) == [("a", 1), ("a_2", 2), ("a_1", 3), ("a_3", 4)]


@pytest.mark.parametrize(
    "sql",
    [
        "from read_text('{file}')",
        "from '{file}'",
        "from glob('{folder}/*')",
        "copy (select 1) to '{folder}/new'",
        "attach '{folder}/new.db'",
        "export database '{folder}/new'",
        "install httpfs",
        "load httpfs",
        "from read_csv('http://127.0.0.1:9/x.csv')",
        "set threads = 1",
        "set enable_external_access = true",
        "reset lock_configuration",
    ],
)
def test_a_query_reaches_the_tables_alone(sql: str, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "file.csv").write_text("a\n1\n")
    with pytest.raises(UsageFault, match="SQL: "):
        list(ask(RUN, sql.format(file=tmp_path / "file.csv", folder=tmp_path)).rows)
    assert [path.name for path in tmp_path.iterdir()] == ["file.csv"]


def test_unsafe_opens_files_and_settings_and_says_so(tmp_path: Path) -> None:
    trace, file = write(tmp_path / "trace.json", step(0, 100)), tmp_path / "file.csv"
    file.write_text("a\n1\n")
    outcome = traceq_command("query", trace, f"from '{file}'", "--unsafe", "--json")
    assert outcome.out == '{"a":1}\n'
    assert outcome.err.startswith("traceq: note: --unsafe: ")
    assert outcome.err.count("\n") == 1


def test_an_unknown_name_lists_the_tables_and_a_close_column() -> None:
    with pytest.raises(UsageFault, match=f"the tables are {', '.join(NAMES)} "):
        rows(RUN, "from sync")
    with pytest.raises(UsageFault, match=f'Candidate bindings: .*blocked_ns".*the tables are {", ".join(NAMES)} '):
        rows(RUN, "select blocked from syncs")


def test_a_query_without_end_is_stopped() -> None:
    pytest.importorskip("duckdb")
    endless = "select count(*) from range(10000000) a, range(10000000) b"
    with pytest.raises(UsageFault, match="SQL: stopped after"):
        list(ask(RUN, endless, most_seconds=0.2).rows)
    assert list(ask(RUN, "select 1", most_seconds=0.2).rows) == [(1,)]
