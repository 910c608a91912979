"""The tools: every number is the command's, faults name what was given, and nothing is written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builder import annotation, frame, kernel, launch, memcpy, op, step, world, write
from paths import FIXTURES, ROOT, TRACES
from terminal import traceq

pytest.importorskip("mcp", reason="the mcp package is not installed")
pytest.importorskip("duckdb", reason="queries need DuckDB")

from traceq.agent_tools.answer import CANNOT_TELL, num_tokens, to_text
from traceq.agent_tools.limits import MOST_TOKENS
from traceq.agent_tools.readings import Readings
from traceq.agent_tools.server import answering, call_tool
from traceq.agent_tools.worker import Worker
from traceq.errors import TraceqError

JOB, ARMS, KINDS = "fixtures/example/job", "fixtures/outlier_ab", "fixtures/kinds"
EVERY_PATH = [
    *(f"fixtures/{name}" for name in ("example/job", "example/uneven", "outlier_ab", "outlier_ab/on")),
    *sorted(str(path.relative_to(ROOT)) for path in (FIXTURES / "kinds").iterdir()),
    *(
        pytest.param(str(path.relative_to(ROOT)), id=path.name, marks=pytest.mark.slow)
        for path in sorted((FIXTURES / "strategies").iterdir())
    ),
]
REAL = [
    pytest.param(
        str(TRACES / name),
        id=name,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(not (TRACES / name).exists(), reason=f"no real traces in {TRACES}"),
        ],
    )
    for name in (
        "ep-moe-b200-ab/ref.json.gz",
        "inference/vllm-piecewise-mi300.json.gz",
        "nanogpt-h100-8r",
        "qwen-h100/qwen1.5-0.5b.json.gz",
        "torchrec-v100-straggler-4r",
    )
]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def ask(tool: str, **arguments: Any) -> dict[str, Any]:
    answer = call_tool(Readings(), tool, arguments)
    assert num_tokens(to_text(answer)) <= MOST_TOKENS
    document: dict[str, Any] = json.loads(to_text(answer))
    return document


def tables(value: Any) -> Iterator[dict[str, Any]]:
    """The tables of an answer that its command prints; a summary has one of its own."""
    for name, part in value.items():
        if isinstance(part, dict) and "columns" in part:
            yield {"name": name, **part}


def rounded(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def cut(value: object) -> object:
    return value[:100] if isinstance(value, str) else rounded(value)


REPRODUCED = [
    ("read", {"path": JOB}),
    ("findings", {"path": JOB}),
    ("findings", {"path": JOB, "ranks": "1", "analysis": "syncs"}),
    *(("findings", {"path": JOB, "analysis": name}) for name in ("phases", "ranks", "collectives", "memory", "replay")),
    ("findings", {"path": f"{KINDS}/pipeline", "analysis": "pipeline"}),
    ("findings", {"path": f"{KINDS}/inference.json", "analysis": "inference"}),
    ("findings", {"path": f"{KINDS}/snapshot_oom.pickle", "analysis": "memory_kinds"}),
    ("findings", {"path": "fixtures/example/uneven", "analysis": "desync"}),
    ("what_if", {"path": JOB}),
    ("line_context", {"path": JOB, "line": "train.py:31"}),
    ("line_context", {"path": f"{KINDS}/snapshot.pickle", "line": "model.py"}),
    ("causes", {"a": f"{KINDS}/inference.json", "b": f"{KINDS}/inference_slower.json"}),
    ("compare", {"a": f"{KINDS}/snapshot.pickle", "b": f"{KINDS}/snapshot_longer.pickle"}),
]


@pytest.mark.parametrize(("tool", "arguments"), REPRODUCED, ids=str)
def test_the_command_of_an_answer_prints_each_of_its_rows(tool: str, arguments: dict[str, Any]) -> None:
    answer = ask(tool, **arguments)
    words = shlex.split(answer["command"])
    assert words[0] == "traceq"
    printed = json.loads(traceq(*words[1:]).out)
    num_rows = 0
    for table in tables(answer):
        if table["name"] in ("summary", "unexplained"):
            continue
        rows = [{key: cut(value) for key, value in row.items()} for row in as_list(printed[table["name"]])]
        for row in table["rows"]:
            shown = {key: cut(value) for key, value in zip(table["columns"], row, strict=True)}
            assert any(shown.items() <= each.items() for each in rows), (table["name"], shown)
            num_rows += 1
    assert num_rows


def as_list(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else [value]


def test_what_the_job_would_gain_is_what_its_command_prints() -> None:
    together = ask("what_if", path=JOB)["together"]
    printed = json.loads(traceq(*shlex.split(together["command"])[1:]).out)
    assert [dict(zip(together["rows"]["columns"], row, strict=True)) for row in together["rows"]["rows"]] == [
        {key: value for key, value in prediction["together"].items() if key != "noise_ns"}
        for prediction in printed["predictions"]
    ]


def test_the_command_of_a_query_prints_its_rows() -> None:
    answer = ask("query", path=JOB, sql="select line, bytes from syncs")
    lines = traceq(*shlex.split(answer["command"])[1:]).out.splitlines()
    assert [list(json.loads(line).values()) for line in lines] == answer["answer"]["rows"]
    assert json.loads(lines[0])["line"] == "train.py:31 has_outliers"


def test_the_command_of_a_comparison_has_its_verdict_and_interval() -> None:
    answer = ask("compare", a=ARMS)
    printed = json.loads(traceq(*shlex.split(answer["command"])[1:]).out)["diffs"]
    for each, diff in zip(answer["comparisons"], printed, strict=True):
        assert (each["delta_ns"], each["ci95_ns"]) == (diff["step"]["delta_ns"], diff["step"]["ci95_ns"])
        assert (each["verdict"], diff["verdict"]["name"]) == (CANNOT_TELL, "inconclusive")
        parts = (diff["verdict"], *diff["basis"], *diff["reasons"])
        assert (each["state"], each["words"]) == (diff["verdict"]["state"], [part["text"] for part in parts])


def test_the_command_of_a_summary_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    summary = ask("findings", path=JOB, analysis="partition")["summary"]
    printed = traceq(*shlex.split(summary.pop("command"))[1:]).out
    [by_phase, _] = summary.values()
    total = dict(zip(by_phase["columns"], by_phase["rows"][-1], strict=True))
    assert total["compute"] == 4_040_000
    assert re.search(r"^total +4\.04 ms", printed, re.MULTILINE)
    assert all(title in printed for title in summary)


def test_the_outcome_of_rules_is_that_of_the_command() -> None:
    rules = ["dtoh in forward == 0", "step p95 < 10 ms", "mfu >= 40 %"]
    answer = ask("check", path=JOB, rules=rules)
    assert [row[:2] for row in answer["rules"]["rows"]] == [
        ["dtoh in forward == 0", "broken"],
        ["step p95 < 10 ms", "holds"],
        ["mfu >= 40 %", CANNOT_TELL],
    ]
    assert answer["verdict"] == "broken"
    assert ask("check", path=JOB, rules=rules[1:])["verdict"] == CANNOT_TELL
    assert ask("check", path=JOB, rules=rules[1:2])["verdict"] == "holds"
    assert [traceq("check", JOB, "--rule", rule).code for rule in rules] == [3, 0, 1]


def test_a_damaged_trace_passes_no_rule(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    file.write_bytes((FIXTURES / "example" / "job" / "rank0.json").read_bytes()[:20_000])
    answer = ask("check", path=str(file), rules=["step p95 < 10 s"])
    assert answer["verdict"] == CANNOT_TELL
    assert str(file) in answer["reason"]
    assert ask("read", path=str(file))["verdict"] == "readable in part"


def test_a_recording_without_the_trace_of_a_rank_passes_no_rule(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ROOT / ARMS, run)
    rules = ["scalar in forward <= 1000"]
    assert ask("check", path=str(run / "on"), rules=rules)["verdict"] == "holds"
    (run / "on" / "rank1.json.gz").unlink()
    answer = ask("check", path=str(run / "on"), rules=rules)
    assert answer["verdict"] == CANNOT_TELL
    assert "traces of 1 of its 2 ranks" in answer["reason"]


def test_a_number_that_was_not_recorded_is_no_number_of_a_query() -> None:
    lost, sized = f"{KINDS}/no_device_rows.json", f"{KINDS}/groups.json"
    assert ask("query", path=lost, sql="select sum(bytes) from collectives")["verdict"] == CANNOT_TELL
    both = ask("query", path=lost, sql="select rank, bytes from collectives")
    assert (both["verdict"], both["answer"]["rows"]) == ("answered in part", [[0, -1]])
    assert re.match(r"collectives\.bytes .* all 1 ", both["reason"])
    assert ask("query", path=sized, sql="select sum(bytes) from collectives")["verdict"] == "answered"
    some = ask("query", path=JOB, sql="from events where bytes > 0")
    assert some["verdict"] == "answered"
    assert re.fullmatch(r"events\.bytes .* \d+ of 450 rows", some["looked"]["unknown"][0])


@pytest.mark.parametrize("path", [*EVERY_PATH, *REAL])
def test_every_answer_is_within_the_budget(path: str) -> None:
    readings = Readings()
    names = [report.name for report in readings.sheet(path).reports]
    for name in ("", *names):
        answer = call_tool(readings, "findings", {"path": path, "analysis": name})
        assert num_tokens(to_text(answer)) <= MOST_TOKENS, name
        assert answer["verdict"] in ("found", "nothing found", CANNOT_TELL)
        assert (answer["verdict"] == CANNOT_TELL) == ("reason" in answer)
    for tool, more in (("read", {}), ("what_if", {}), ("line_context", {"line": "train.py:31"})):
        assert num_tokens(to_text(call_tool(readings, tool, {"path": path, **more}))) <= MOST_TOKENS


def test_nothing_found_is_never_about_what_could_not_be_examined() -> None:
    answer = ask("findings", path=f"{KINDS}/no_device_rows.json")
    assert answer["verdict"] == "nothing found"
    could_not = {name: each["why"] for each in answer["looked"]["could_not"] for name in each["what"]}
    assert {"syncs", "idle", "kernels", "ranks", "memory"} <= could_not.keys()
    assert not could_not.keys() & set(answer["looked"]["nothing_in"])
    assert ask("findings", path=f"{KINDS}/no_device_rows.json", analysis="idle")["verdict"] == CANNOT_TELL


def test_the_traced_steps_of_an_engine_are_no_unprofiled_ones() -> None:
    looked = ask("read", path=f"{KINDS}/inference.json")["looked"]
    (why,) = [each for each in looked["could_not"] if each["why"].startswith("no unprofiled steps")]
    assert why["what"] == ["arms", "batches", "perturbation", "unprofiled"]


def test_a_rank_without_device_rows_does_not_make_the_others_unknown(tmp_path: Path) -> None:
    for number in (0, 1):
        content = json.loads((ROOT / JOB / f"rank{number}.json").read_text())
        if number == 1:
            content["traceEvents"] = [
                row for row in content["traceEvents"] if row.get("cat") not in ("kernel", "gpu_memcpy")
            ]
        (tmp_path / f"rank{number}.json").write_text(json.dumps(content))
    answer = ask("findings", path=str(tmp_path), analysis="syncs")
    assert (answer["verdict"], {row[0] for row in answer["syncs"]["rows"]}) == ("found", {0, 1})
    could_not = {
        name: each["why"] for each in ask("read", path=str(tmp_path))["looked"]["could_not"] for name in each["what"]
    }
    assert re.match("rank 1: .* no device activity", could_not["some ranks"])


def test_durations_that_are_no_evidence_are_not_in_the_answer() -> None:
    answer = ask("causes", a=f"{ARMS}/off", b=f"{ARMS}/on")
    assert answer["verdict"] == CANNOT_TELL
    assert answer["causes"]["columns"] == ["kind", "phase", "name", "line", "delta_num"]
    assert ["sync", "forward", "aten::is_nonzero", "outliers.py:18 outlier_seen", 1.0] in answer["causes"]["rows"]


FAULTS = [
    ("read", {"path": "no/such.json"}, "no/such.json: no such file or directory"),
    ("read", {"path": ""}, "'' is no path"),
    ("read", {"path": "a\0b"}, "no path"),
    ("read", {"path": "/dev/zero"}, "/dev/zero: neither a file nor a folder"),
    ("read", {"path": "README.md"}, "README.md: "),
    ("read", {"path": "s3://bucket/trace.json"}, "s3://bucket/trace.json: this server reads local files only"),
    ("read", {"pth": JOB}, "read: Object contains unknown field `pth`; given: pth; expected: path"),
    ("read", {}, "read: Object missing required field `path`; given: nothing; expected: path"),
    ("read", {"path": 7}, r"read: Expected `str`, got `int` - at `\$.path`"),
    ("findings", {"path": JOB, "analysis": "sync"}, "no report 'sync'; choose from .*syncs"),
    ("findings", {"path": JOB, "ranks": "7"}, "rank 7.*ranks 0-1"),
    ("findings", {"path": JOB, "ranks": "x"}, "--ranks x: 'x' is not a rank"),
    ("query", {"path": JOB, "sql": "from sync"}, 'Did you mean "syncs".*the tables are events, device_ops, .* steps'),
    ("query", {"path": JOB, "sql": "select lin from syncs"}, 'Candidate bindings: .*line"'),
    ("query", {"path": JOB, "sql": "garbage"}, "Parser Error.*the tables are"),
    ("query", {"path": JOB, "sql": ""}, "no statement"),
    ("query", {"path": JOB, "sql": "from read_csv('/etc/passwd')"}, "Permission Error"),
    ("query", {"path": JOB, "sql": "copy syncs to 'x.csv'"}, "Permission Error"),
    ("query", {"path": f"{KINDS}/snapshot.pickle", "sql": "from syncs"}, "a memory snapshot, which has no events"),
    ("what_if", {"path": JOB, "remove": "train.py:99"}, "train.py:99.*choose from .*train.py:31 has_outliers"),
    ("line_context", {"path": JOB, "line": " "}, "line: empty"),
    ("check", {"path": JOB, "rules": ["dtho == 0"]}, "rule 'dtho == 0'.*did you mean 'dtoh'"),
    ("check", {"path": JOB, "rules": []}, r"check: Expected `array` of length >= 1"),
    ("compare", {"a": JOB}, "not a recorded run"),
    ("compare", {"a": JOB, "b": f"{KINDS}/snapshot.pickle"}, "a memory snapshot, which is compared with another"),
    ("causes", {"a": f"{KINDS}/snapshot.pickle", "b": f"{KINDS}/snapshot_oom.pickle"}, "have no steps.*compare"),
    ("compare", {"a": ARMS, "threshold_pct": 200}, r"Expected `float` <= 100.*\$.threshold_pct"),
    ("show", {"path": JOB}, "no tool 'show'; choose from read, findings"),
]


@pytest.mark.parametrize(("tool", "arguments", "text"), FAULTS, ids=str)
def test_a_fault_names_what_was_given(tool: str, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TraceqError) as fault:
        call_tool(Readings(), tool, arguments)
    assert re.search(text, str(fault.value))
    assert "\n" not in str(fault.value)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file, readings = tmp_path / "rank0.json", Readings()
    for us in (100, 300):
        write(file, step(0, us), launch(1, 2, 1), kernel("gemm", 5, us - 10, 1))
        os.utime(file, ns=(us, us))
        answer = call_tool(readings, "query", {"path": str(file), "sql": "select sum(dur_ns) from device_ops"})
        assert json.loads(to_text(answer))["answer"]["rows"] == [[(us - 10) * 1000]]
        steps = json.loads(to_text(call_tool(readings, "read", {"path": str(file)})))["steps"]
        assert steps["rows"][0][steps["columns"].index("window_ns")] == us * 1000


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEQ_CACHE", "0")  # as the command sets it
    shutil.copytree(FIXTURES / "example", tmp_path / "example")
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    job, readings = str(tmp_path / "example" / "job"), Readings()
    for tool, more in (("read", {}), ("findings", {}), ("what_if", {}), ("check", {"rules": ["syncs == 0"]})):
        call_tool(readings, tool, {"path": job, **more})
    call_tool(readings, "query", {"path": job, "sql": "create table x as from syncs"})
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def every_call(path: str) -> list[tuple[str, dict[str, Any]]]:
    """A call of each tool."""
    more: dict[str, dict[str, Any]] = {
        "read": {},
        "findings": {},
        "what_if": {},
        "line_context": {"line": "train.py:31"},
        "check": {"rules": ["dtoh in forward == 0", "mfu >= 40 %"]},
        "query": {"sql": "from events"},
    }
    calls = [(tool, {"path": path, **arguments}) for tool, arguments in more.items()]
    return [*calls, *((tool, {"a": path, "b": path}) for tool in ("compare", "causes"))]


@pytest.mark.parametrize("name", ["x" * 10_000, "\N{CJK UNIFIED IDEOGRAPH-65E5}" * 10_000])
def test_answers_about_names_without_end_are_within_the_budget(name: str, tmp_path: Path) -> None:
    rows = [step(0, 100), op("aten::item", 1, 50), launch(10, 2, 1), memcpy(name, 20, 30, 1), kernel(name, 60, 5, 2)]
    rows += [annotation(name, 2, 80), frame(f"/x/{name}.py(3): {name}", 0, 99), launch(55, 2, 2)]
    metadata = {"deviceProperties": [{"id": 0, "name": name}], "host_name": name, **world(0, 2, name)}
    path = str(write(tmp_path / "rank0.json", *rows, **metadata))
    readings = Readings()
    analyses = [("findings", {"path": path, "analysis": report.name}) for report in readings.sheet(path).reports]
    sizes = {str(call): num_tokens(to_text(call_tool(readings, *call))) for call in (*every_call(path), *analyses)}
    assert {call: size for call, size in sizes.items() if size > MOST_TOKENS} == {}


def test_many_rules_and_columns_are_within_the_budget() -> None:
    ask("check", path=JOB, rules=["dtoh in forward == 0"] * 3000)
    wide = ask("query", path=JOB, sql=f"select {', '.join(f'1 as c{number}' for number in range(3000))}")
    assert len(wide["answer"]["columns"]) + wide["answer"]["left_out_columns"] == 3000


@pytest.mark.parametrize("tool", [tool for tool, _ in every_call("")])
def test_a_long_path_is_a_fault(tool: str) -> None:
    with pytest.raises(TraceqError, match="File name too long"):
        call_tool(Readings(), tool, dict(every_call("a" * 5000))[tool])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc tells the memory of a process")
def test_five_hundred_answers_take_no_more_memory_than_a_hundred() -> None:
    worker = Worker(partial(answering, urls=False))
    paths = ["fixtures/example/job", "fixtures/example/uneven", "fixtures/example/job/rank0.json", f"{ARMS}/on"]
    calls = [call for path in paths for call in every_call(path)]
    used = []
    for number in range(500):
        with suppress(TraceqError):
            worker.ask(*calls[number % len(calls)])
        pages = Path(f"/proc/{worker.process_id}/statm").read_text().split()[1]
        used.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    worker.close()
    assert max(used[400:]) < 1.1 * max(used[:100])
