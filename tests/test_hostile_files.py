"""Files that are no regular ones are refused and never waited for; lines and names without end take little."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path

import pytest
from builder import comms, kernel, launch, op, step, world, write
from paths import FIXTURES
from terminal import shell

from traceq.kineto.read import read_trace
from traceq.locations import open_binary, read_whole
from traceq.model import Category
from traceq.runs.flight_recorder import read_flight
from traceq.runs.read import read
from traceq.runs.step_log import read_lines


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "folder"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    path = Path("/dev/zero") if kind == "device" else path
    for opened in (partial(read_whole, most=1 << 20), open_binary):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            opened(path)


def test_a_file_larger_than_any_of_its_kind_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"{}")
    assert read_whole(path, 2) == b"{}"
    for size in (3, 1 << 40):
        os.truncate(path, size)
        with pytest.raises(OSError, match="larger than"):
            read_whole(path, 2)


def test_a_pipe_without_end_is_read_up_to_the_limit(tmp_path: Path) -> None:
    trace = write(tmp_path / "rank0.json", step(0, 10), op("aten::mm", 1, 2))
    done = shell(f"timeout 60 yes | $TRACEQ check {trace} --rules /dev/stdin")
    assert done.code == 1
    assert "larger than 1 MiB" in done.err


HOLE = 1 << 40


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
@pytest.mark.parametrize("end", [b"", b"]"])
def test_a_file_ends_at_the_first_large_hole(packed: Callable[[bytes], bytes], end: bytes, tmp_path: Path) -> None:
    path, small = tmp_path / "large.json", tmp_path / "small.json"
    text = write(small, step(0, 100), *(op("aten::mm", start, 2) for start in range(50))).read_bytes()
    small.write_bytes(packed(text[:-100]))
    path.write_bytes(small.read_bytes())
    os.truncate(path, HOLE)
    with path.open("ab") as file:
        file.write(end)
    with open_binary(path) as stream:
        assert len(stream.read(1 << 20)) < 1 << 20
    assert len(read_trace(path).events) == len(read_trace(small).events)


def test_a_size_that_a_file_only_claims_takes_no_memory(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", step(0, 10), op("aten::mm", 1, 2))
    os.truncate(tmp_path / "rank0.json", HOLE)
    assert shell(f"ulimit -v 4000000; OPENBLAS_NUM_THREADS=1 $TRACEQ show {tmp_path}").code == 0


@pytest.mark.parametrize("kind", ["pipe", "link to itself", "link to a device"])
def test_a_rank_that_is_no_regular_file_is_said_to_be_unreadable(kind: str, tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", step(0, 10), op("aten::mm", 1, 2))
    path = tmp_path / "rank1.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "link to a device" else path)
    assert [caveat.code for caveat in read(tmp_path).caveats if "rank1" in caveat.text] == ["unreadable_rank"]


def test_links_in_a_circle_are_no_fault_of_traceq(tmp_path: Path) -> None:
    for name in ("recipe.py", "in.json", "out.json"):
        (tmp_path / name).symlink_to(name)
    trace = write(tmp_path / "rank0.json", step(0, 10), op("aten::mm", 1, 2))
    export = f"cd {tmp_path}; $TRACEQ export --to perfetto"
    assert shell(f"cd {tmp_path}; $TRACEQ record --recipe recipe.py").code == 2
    assert shell(f"{export} in.json").code == 1
    assert shell(f"{export} {trace} -o out.json").code == 0


@pytest.mark.parametrize("name", ["rank0.json.gz", "rank0.flight.json", "run.json", "steps/rank0.jsonl"])
def test_a_folder_with_a_pipe_in_it_is_shown_or_refused_at_once(name: str, tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(FIXTURES / ("outlier_ab" if name.startswith(("run", "steps")) else "example/job"), job)
    (job / name).unlink(missing_ok=True)
    os.mkfifo(job / name)
    done = shell(f"timeout 60 $TRACEQ show {job}")
    assert done.code in (0, 1), done.err
    assert "Traceback" not in done.err


def test_a_pipe_that_the_shell_makes_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json"
    write(trace, step(0, 10), op("aten::mm", 1, 2))
    assert shell(f"cat {trace} | $TRACEQ show /dev/stdin").code == 0


def test_a_line_of_a_step_log_without_end_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl").write_bytes(b"{" * (3 << 20))
    assert list(read_lines(tmp_path / "rank0.jsonl")) == []


def test_a_name_without_end_is_cut_and_stays_apart_from_others(tmp_path: Path) -> None:
    names = ["0" * 100_000, "0" * 100_001, "aten::mm"]
    write(tmp_path / "rank0.json", step(0, 100), *(op(name, 10 * index, 5) for index, name in enumerate(names)))
    events = read_trace(tmp_path / "rank0.json").events
    read = [events.text(row) for row in events.rows(Category.CPU_OP).tolist()]
    assert [len(name) for name in read] == [4096, 4096, 8]
    assert len(set(read)) == 3


def test_all_that_has_a_name_is_cut_but_lists_are_whole(tmp_path: Path) -> None:
    long, shapes = "0" * 100_000, [[number] for number in range(2000)]
    stack = f"{long};/x/train.py(31): {long};"
    rows = [
        {**op(long, 5, 50), "cat": long, "pid": long, "tid": long},
        op("aten::mm", 60, 5, **{"Input Dims": shapes, "Call stack": stack}),
        {"ph": "M", "name": "thread_name", "pid": long, "tid": long, "ts": 0, "args": {"name": long}},
        comms("allreduce", 70, 5, (1, 1), **{"Process Group Name": long}),
        launch(80, 1, 1),
        kernel("gemm", 82, 2, 1),
    ]
    metadata = world(0, 1, long) | {"host_name": long, "deviceProperties": [{"id": 0, "name": long}]}
    trace = read_trace(write(tmp_path / "rank0.json", step(0, 100), *rows, **metadata))
    held = [trace.backend, trace.host, trace.device, *(text for thread in trace.threads for text in astuple(thread))]
    held += [*trace.events.strings, *(text for _, text in trace.versions)]
    assert sorted({text[:8] for text in held if len(text) > 4096}) == ["00000000", "[[0],[1]"]
    assert [text.count(";") for text in held if len(text) > 4096 and text[0] == "0"] == [2]
    assert {thread.tid for thread in trace.threads} <= set(trace.events.strings)


def test_names_of_a_dump_are_cut(tmp_path: Path) -> None:
    entry = {"process_group": ["9" * 5000, "x"], "collective_seq_id": 1, "profiling_name": "n" * 5000}
    (tmp_path / "rank0.flight.json").write_text(json.dumps({"entries": [entry], "waits_at": "w" * 5000}))
    flight = read_flight(tmp_path / "rank0.flight.json")
    assert {len(text) for text in (*flight.group, *flight.name, flight.waits_at)} == {4096}
