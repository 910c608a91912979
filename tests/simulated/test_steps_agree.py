"""The step of what a host issued is one, whatever asks: SQL, `--step`, the library, JSON and the agents' tools.

Of jobs whose device runs a step's work up to several steps later, and of a real one, against a count of raw events.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builder import table
from paths import TRACES
from simulator import US, Shape, a_job, json_of, simulate
from terminal import traceq as traceq_command

pytest.importorskip("duckdb", reason="queries need DuckDB")

import traceq
from traceq.agent_tools.readings import Readings
from traceq.agent_tools.tools import Query
from traceq.facts.timeline.single_step import only_step
from traceq.facts.timeline.steps import steps
from traceq.frames import ask

SHAPES = {
    "the device lags by steps": Shape(layers=3, syncs=0.0, host_ns=2 * US, kernel_ns=400 * US, collectives=True),
    "the device keeps up": Shape(layers=3, syncs=0.3, host_ns=40 * US, kernel_ns=10 * US, collectives=True),
    "one waits for the other": Shape(layers=3, syncs=0.6, host_ns=20 * US, kernel_ns=60 * US, collectives=True),
}
CALLS = "select rank, step, name, count(*) as num, sum(bytes), sum(gpu_ns) from collectives group by all"
WAITS = "select rank, step, kind, count(*) as num, sum(blocked_ns) from syncs group by all"
NANOGPT = TRACES / "nanogpt-h100-8r"

Sums = Counter[tuple[int, int, str, str]]


def written(folder: Path, seed: int, shape: Shape) -> Path:
    job = a_job(seed, num_ranks=2, num_steps=4, shape=shape)
    for timeline in simulate(job):
        (folder / f"rank{timeline.rank}.json").write_bytes(json_of(job, timeline))
    return folder


def from_sql(calls: Any, waits: Any) -> Sums:
    """By rank, step, name and quantity; steps that are none left out."""
    sums = Sums()
    for rank, step, name, num, size, gpu_ns in calls:
        sums.update({(rank, step, name, key): int(n) for key, n in (("num", num), ("bytes", size), ("gpu_ns", gpu_ns))})
    for rank, step, name, num, blocked_ns in waits:
        sums.update({(rank, step, name, "num"): num, (rank, step, name, "blocked_ns"): int(blocked_ns)})
    return sums


def quantities(row: dict[str, Any]) -> set[str]:
    return row.keys() & ({"num", "blocked_ns"} if "kind" in row else {"num", "bytes", "gpu_ns"})


def from_tables(rows: dict[str, list[dict[str, Any]]]) -> Sums:
    sums = Sums()
    for row in (*rows["collectives_steps"], *rows["syncs_steps"]):
        for key in quantities(row):
            step = -1 if row["step"] is None else row["step"]
            sums[row["rank"], step, row.get("name") or row["kind"], key] += row[key] or 0
    return sums


def from_steps(run: traceq.Run, numbers: list[int]) -> Sums:
    """What `--step K` has, step by step."""
    sums = Sums()
    for number in numbers:
        for name in ("collectives", "syncs"):
            for row in table(only_step(run, number), name):
                for key in quantities(row):
                    sums[row["rank"], number, row.get("name") or row["kind"], key] += row[key] or 0
    return sums


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_all_agree_on_each_step_and_add_up_to_the_whole(seed: int, shape: Shape, tmp_path: Path) -> None:
    path = written(tmp_path, seed, shape)
    run = traceq.read(path)
    expected = +from_sql(ask(run, CALLS).rows, ask(run, WAITS).rows)
    document = json.loads(traceq_command("show", path, "--json").out)
    reports = {name: traceq.analyze(run, name) for name in ("collectives", "syncs")}
    library = {
        key: reports[key.partition("_")[0]].table(key).to_dicts() for key in ("collectives_steps", "syncs_steps")
    }
    tool = [Query(str(path), sql).answer(Readings()).parts["answer"].rows for sql in (CALLS, WAITS)]
    numbers = steps(run.traces[0]).number.tolist()
    in_steps = Counter({key: num for key, num in expected.items() if key[1] >= 0})
    assert +from_tables(document) == expected
    assert +from_tables(library) == expected
    assert +from_sql(*tool) == expected
    assert +from_steps(run, numbers) == in_steps
    whole = sum(row["num"] for name in ("collectives", "syncs") for row in table(run, name))
    assert sum(num for (*_, key), num in expected.items() if key == "num") == whole > 0


def test_a_device_lags_by_more_than_a_step(tmp_path: Path) -> None:
    trace = traceq.read(written(tmp_path, 0, SHAPES["the device lags by steps"])).traces[0]
    assert steps(trace).window[0, 1] > steps(trace).host[1, 1]


@pytest.mark.skipif(not NANOGPT.exists(), reason=f"no real traces in {TRACES}")
def test_of_a_real_job_they_are_the_raw_events_in_a_step_of_the_host() -> None:
    run, raw = traceq.read(NANOGPT), Counter[tuple[int, int]]()
    for rank in range(8):
        events = json.loads(gzip.decompress((NANOGPT / f"rank{rank}.json.gz").read_bytes()))["traceEvents"]
        marks = {
            int(each["name"].partition("#")[2]): (each["ts"], each["ts"] + each["dur"])
            for each in events
            if each.get("cat") == "user_annotation" and each["name"].startswith("ProfilerStep#")
        }
        for each in events:
            if each.get("name") == "record_param_comms" and "allgather" in each["args"].get("Collective name", ""):
                raw.update((rank, step) for step, (start, end) in marks.items() if start <= each["ts"] < end)
    rows = ask(run, "select rank, step, count(*) from collectives where name = 'all_gather' group by all").rows
    assert {(rank, step): num for rank, step, num in rows} == raw
    assert [raw[5, step] for step in (10, 11, 12, 13)] == [4, 10, 4, 10]
