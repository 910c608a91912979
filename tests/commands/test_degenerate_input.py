"""Input that is well-formed and makes no sense: one line on stderr, exit 1 or 2, and no traceback."""

from __future__ import annotations

import base64
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from builder import kernel, launch, op, step, write
from terminal import traceq

EVENTS = (step(0, 100), step(100, 100, 1), launch(5, 2, 1), kernel("gemm", 10, 30, 1), op("aten::mm", 4, 5))
OFF, ON = {"name": "off", "meaning": "", "baseline": True}, {"name": "on", "meaning": ""}
MANIFEST = {"version": 1, "run_id": "x", "recipe": "r", "question": "q", "parameters": {}, "phases": ["forward"]}
MANIFEST |= {"num_ranks": 1, "seed": 0, "status": "complete", "arms": [OFF, ON]}
PAIR = {"kind": "pair", "a": "off", "b": "on", "pair": 0, "b_second": True, "first_ns": 100, "second_ns": 100}


def refused(*words: str | Path) -> str:
    """The one line with which a command ends."""
    outcome = traceq(*words)
    assert outcome.code in (1, 2)
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("traceq: ")
    assert len(line) < 1500
    return line


def run(folder: Path, *lines: dict[str, Any], **manifest: Any) -> Path:
    (folder / "run" / "steps").mkdir(parents=True)
    (folder / "run" / "run.json").write_text(json.dumps(MANIFEST | manifest))
    (folder / "run" / "steps" / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for arm in ("off", "on"):
        write(folder / "run" / arm / "rank0.json.gz", *EVENTS)
    return folder / "run"


def commands(path: Path) -> list[tuple[str | Path, ...]]:
    return [
        *(("show", path), ("show", path, "--json"), ("show", path, "--full"), ("show", path, "--html", "page.html")),
        *(("diff", path, path), ("diff", path, path, "--json"), ("diff", path, path, "--html", "page.html")),
        *(("check", path, "--rule", "step < 5 ms"), ("query", path, "from steps")),
        *(("export", path, "--to", "perfetto", "-o", "x.pftrace"), ("export", path, "--to", "parquet", "-o", "tables")),
        ("open", path, "--no-browser"),
    ]


@pytest.mark.parametrize(
    "events",
    [
        [step(5, 0)],
        [step(5, 0), op("a", 5, 0)],
        [step(5, 0), launch(5, 0, 1), kernel("k", 5, 0, 1)],
        [op("a", 7, 0)],
    ],
)
def test_a_trace_that_lasts_no_time_is_refused_by_every_command(
    events: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "trace.json", *events)
    for words in commands(path):
        assert f"{path}: all its events last 0 ns" in refused(*words)
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("step_us", [0, 100])
def test_a_mark_that_lasts_no_time_among_others_is_no_fault(tmp_path: Path, step_us: int) -> None:
    path = write(tmp_path / "trace.json", step(5, 0), step(5, step_us, 1), op("a", 5, 10), op("b", 30, 0))
    for words in [("show", path), ("diff", path, path), ("check", path, "--rule", "step < 1 s")]:
        assert traceq(*words).code == 0


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ({"arms": []}, "no arm is the baseline"),
        ({"arms": [OFF | {"baseline": False}, ON]}, "no arm is the baseline"),
        ({"arms": [OFF, OFF]}, "two arms of one name"),
        ({"arms": [OFF, ON | {"name": "../other/on"}]}, "'../other/on' is no folder"),
        ({"arms": [OFF, ON | {"name": "/abs"}]}, "'/abs' is no folder"),
        ({"arms": [OFF, ON | {"name": ".."}]}, "'..' is no folder"),
        ({"arms": [OFF, ON | {"name": ""}]}, "'' is no folder"),
        ({"arms": [OFF, ON | {"name": "x" * 256}]}, "is no folder"),
        ({"arms": [OFF, ON | {"against": "x"}]}, "no arm 'x'"),
        ({"num_ranks": 10**30}, "a count that is negative"),
        ({"num_ranks": -1}, "a count that is negative"),
        ({"version": 10**30}, "format"),
    ],
)
def test_a_manifest_without_sense_is_refused(tmp_path: Path, manifest: dict[str, Any], problem: str) -> None:
    path = run(tmp_path, PAIR, **manifest)
    for words in (
        ("show", path),
        ("diff", path),
        ("diff", path / "off", path / "on"),
        ("check", path, "--rule", "dtoh == 0"),
    ):
        assert problem in refused(*words)


@pytest.mark.parametrize("field", ["first_ns", "second_ns", "pair", "num_looks", "first_cpu_ns"])
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30, 2**53 + 1])
def test_a_number_beyond_what_json_holds_is_refused(tmp_path: Path, field: str, value: int) -> None:
    path = run(tmp_path, PAIR, PAIR | {field: value})
    for words in (("show", path), ("diff", path)):
        assert "line 2: " in refused(*words)


def embedded(path: Path, **document: Any) -> Path:
    whole = {"format": 1, "manifest": MANIFEST, "arm": "on", "pairs": []} | document
    return write(path, *EVENTS, traceq=base64.b64encode(json.dumps(whole).encode()).decode())


PAIRS = {"a": "off", "b": "on", "b_second": [True, False], "first_ns": [[1, 2]], "second_ns": [[1, 2]]}
PROCESSES = {"arm": "on", "process": [0], "median_ns": [1], "num_steps": [2], "peak_bytes": [3]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [
        {"pairs": [PAIRS | {"first_ns": [[1, 2], [3]]}]},
        {"pairs": [PAIRS | {"first_ns": [[1]]}]},
        {"pairs": [PAIRS | {"first_ns": [[1, 2], [3, 4]]}]},
        {"pairs": [PAIRS | {"b_second": []}]},
        {"pairs": [PAIRS | {"first_ns": [[2**70, 1]]}]},
        {"processes": [PROCESSES | {"process": [0, 1]}]},
        {"processes": [PROCESSES | {"peak_bytes": [2**66]}]},
        {"manifest": MANIFEST | {"arms": []}},
        {"manifest": MANIFEST | {"arms": [OFF, ON | {"name": "/abs"}]}},
        {"lines": {"lines": ["a.py:1 f"], "table": {"other|aten::mm": [[0, 10**9]]}}},
        {"lines": {"lines": ["a.py:1 f"], "table": {"other|aten::mm": [[0, -1]]}}},
        {"lines": {"lines": ["a.py:1 f"], "table": {"other|aten::mm": [[7, 1]]}}},
        {"lines": {"lines": ["a.py:1 f"], "table": {"other|aten::mm": [[-1, 1]]}}},
        {"lines": {"lines": ["a.py:1 f"], "table": {str(key): [[0, 10**6]] for key in range(1000)}}},
    ],
)
def test_embedded_data_without_sense_is_a_note_and_takes_no_memory(tmp_path: Path, document: dict[str, Any]) -> None:
    path = embedded(tmp_path / "trace.json", **document)
    tracemalloc.start()
    try:
        outcomes = [traceq("show", path), traceq("diff", path, path), traceq("show", path, "--json")]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    for outcome in outcomes[:2]:
        assert outcome.code == 0
        assert "traceq: note: traceq metadata: " in outcome.err


RULES = {
    "deep": "rules = " + "[" * 5000 + "]" * 5000,
    "digits": "rules = [" + "9" * 5000 + "]",
    "rule": f'rules = ["dtoh == {"9" * 5000}"]',
    "keys": "x" + ".x" * 5000 + " = 1",
}


@pytest.mark.parametrize("name", RULES)
def test_rules_beyond_any_size_are_one_line(tmp_path: Path, name: str) -> None:
    path, rules = write(tmp_path / "trace.json", *EVENTS), tmp_path / "rules.toml"
    rules.write_text(RULES[name])
    assert "expected" in refused("check", path, "--rules", rules)


@pytest.mark.parametrize("number", ["9" * 5000, "0." + "9" * 5000, "1e5000"])
def test_a_number_of_thousands_of_digits_is_one_line(tmp_path: Path, number: str) -> None:
    path = write(tmp_path / "trace.json", *EVENTS)
    assert "found '" in refused("check", path, "--rule", f"dtoh == {number}")


@pytest.mark.parametrize(
    "url", ["zip://x.json", "dir://x", "dir://", "zip://", "tar://x", "zip://x::FILE", "tar://x::FILE"]
)
@pytest.mark.parametrize("command", ["show", "diff", "query"])
def test_a_url_without_the_file_that_it_is_in_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, url: str
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "trace.json", *EVENTS)
    assert url[:6] in refused(command, url.replace("FILE", str(path)), *(["from steps"] if command == "query" else []))


def test_a_memory_beyond_any_machine_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", *EVENTS)
    assert "--memory" in refused("show", path, "--memory", "9" * 400 + "GB")
