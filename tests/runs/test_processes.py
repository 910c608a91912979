"""Merged traces: several processes in one file are several ranks, or refused, never one rank with side threads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from builder import Event, kernel, launch, op, row, step, text
from paths import FIXTURES

from traceq.analysis.registry import analyze
from traceq.errors import UnreadableInput, UsageFault
from traceq.kineto.decompression import ByteSource
from traceq.runs.read import read


def process(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}


def rank(number: int, *, named: str = "RANK {} - CPU") -> list[Event]:
    """A step of one rank, (100 + 10 * number) us long, whose device row has a process of its own."""
    host, device = 1000 + number, 2000 + number
    rows = [step(0, 100 + 10 * number), op("aten::mm", 5, 50), launch(10, 5, 1), kernel("gemm", 20, 30 + number, 1)]
    for event in rows:
        event["pid"] = device if event["cat"] == "kernel" else host
    return [*rows, process(host, named.format(number)), process(device, f"RANK {number} - GPU 0")]


def merged(folder: Path, *rows: Event, **metadata: Any) -> Path:
    path = folder / "merged.json"
    path.write_bytes(text(*rows, **metadata))
    return path


def test_processes_that_tell_their_rank_are_ranks(tmp_path: Path) -> None:
    run = read(merged(tmp_path, *(event for number in range(4) for event in rank(number))))
    assert run.ranks == (0, 1, 2, 3)
    assert [trace.world_size for trace in run.traces] == [4] * 4
    assert [len(trace.events) for trace in run.traces] == [4] * 4
    table = analyze(run, "steps").tables[0].to_dicts()
    assert [line["dur_ns"] for line in table] == [100_000, 110_000, 120_000, 130_000]
    kernels = analyze(run, "kernels").tables[0].to_dicts()
    assert [(line["rank"], line["gpu_ns"]) for line in kernels] == [(0, 30_000), (1, 31_000), (2, 32_000), (3, 33_000)]


def test_one_rank_of_them_can_be_chosen(tmp_path: Path) -> None:
    path = merged(tmp_path, *rank(0), *rank(1))
    assert read(path, ranks={1}).ranks == (1,)
    with pytest.raises(UsageFault, match="rank 7; expected ranks 0-1"):
        read(path, ranks={7})


@pytest.mark.parametrize("name", ["python", f"rank {'9' * 5000}"])
def test_processes_that_do_not_are_refused_with_a_way_out(name: str, tmp_path: Path) -> None:
    path = merged(tmp_path, *rank(0), *rank(1, named=name))
    with pytest.raises(UnreadableInput, match=r"2 processes .*; 1001 do not tell"):
        read(path)


def test_a_folder_with_a_merged_file_says_so(tmp_path: Path) -> None:
    merged(tmp_path, *rank(0), *rank(1))
    with pytest.raises(UnreadableInput, match=r"2 processes .*; expected a file per rank"):
        read(tmp_path)


def test_one_process_with_devices_and_spans_is_one_rank(tmp_path: Path) -> None:
    spans = row("Trace", "PyTorch Profiler (0)", 0, 100)
    spans["pid"] = "Spans"
    assert read(merged(tmp_path, *rank(3), spans, distributedInfo={"rank": 3, "world_size": 8})).ranks == (3,)


def of_recording(number: int) -> list[Event]:
    """The rows of a rank of the recorded fixture, its process named as programs do that merge traces."""
    with gzip.open(FIXTURES / "outlier_ab" / "off" / f"rank{number}.json.gz") as file:
        rows: list[Event] = json.load(file)["traceEvents"]
    (pid,) = {event["pid"] for event in rows if event.get("cat") == "cpu_op"}
    rows = [event for event in rows if event["pid"] == pid and event.get("name") != "process_name"]
    return [*rows, process(pid, f"RANK {number} - CPU")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steps", "host", "collectives"])
def test_a_recorded_job_reads_the_same_from_one_merged_file(name: str, tmp_path: Path) -> None:
    together = merged(tmp_path, *of_recording(0), *of_recording(1), baseTimeNanoseconds=1790857026000000000)
    apart = tmp_path / "apart"
    apart.mkdir()
    for number in (0, 1):
        (apart / f"rank{number}.json").write_bytes(text(*of_recording(number), baseTimeNanoseconds=1790857026000000000))
    run, expected = read(together), read(apart)
    assert run.ranks == (0, 1)
    assert [len(trace.events) for trace in run.traces] == [len(complete_events(number)) for number in (0, 1)]
    assert analyze(run, name).tables[0].to_dicts() == analyze(expected, name).tables[0].to_dicts() != []


def complete_events(number: int) -> list[Event]:
    return [event for event in of_recording(number) if event["ph"] == "X"]


def test_a_merged_file_that_is_cut_off_is_split_by_what_it_tells(tmp_path: Path) -> None:
    path = merged(tmp_path, *(event for number in range(2) for event in rank(number)), op("cut", 0, 1))
    path.write_bytes(path.read_bytes()[:-20])
    assert read(path).ranks == (0, 1)


def test_a_merged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    fill = ByteSource.readinto

    def counted(source: ByteSource, buffer: memoryview) -> int:
        sizes.append(fill(source, buffer))
        return sizes[-1]

    monkeypatch.setattr(ByteSource, "readinto", counted)
    path = merged(tmp_path, *(event for number in range(4) for event in rank(number)))
    assert read(path).ranks == (0, 1, 2, 3)
    assert sum(sizes) == path.stat().st_size
