"""Files as people have them: TensorBoard's layout, many windows, files of other programs, names with dots."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from builder import op, step, world, write
from terminal import traceq

from traceq.analysis.registry import analyze
from traceq.compare.diff import diff
from traceq.errors import UnreadableInput
from traceq.runs.read import read

MM = op("aten::mm", 5, 50)


def window(folder: Path, name: str, dur: int, rank: int | None = None) -> Path:
    job = {} if rank is None else world(rank, 2, "gloo")
    return write(folder / f"{name}.pt.trace.json.gz", step(0, dur), MM, baseTimeNanoseconds=dur * 10**9, **job)


@pytest.mark.parametrize("path", [".", "plugins/profile/2024_02_02"])
def test_tensorboards_folder_is_read_from_its_top_or_below(path: str, tmp_path: Path) -> None:
    profile = tmp_path / "plugins" / "profile"
    window(profile / "2024_01_01", "host.9.1700000000000", 999, 0)
    for rank, host in enumerate(("hosta.41", "hostb.42")):
        window(profile / "2024_02_02", f"{host}.1700000000001", 100, rank)
        window(profile / "2024_02_02", f"{host}.1700000000002", 200 + rank, rank)
    run = read(tmp_path / path)
    assert [(trace.rank, int(trace.events.dur.max())) for trace in run.traces] == [(0, 200_000), (1, 201_000)]
    assert run.window is not None
    assert (run.window.num, run.window.path) == (2, run.traces[0].path)
    texts = [caveat.text for caveat in run.caveats if caveat.code == "several_windows"]
    assert any(re.search(" 2 recordings; .*: 2024_02_02", text) for text in texts) == (path == ".")


def test_traces_directly_in_the_plugins_folder_are_read(tmp_path: Path) -> None:
    window(tmp_path / "plugins" / "profile", "host.9.1700000000000", 100)
    assert len(read(tmp_path).traces) == 1


def test_files_of_several_processes_without_a_rank_are_no_windows_of_one(tmp_path: Path) -> None:
    window(tmp_path, "host_41.1700000000001", 100)
    window(tmp_path, "host_42.1700000000001", 110)
    (caveat,) = read(tmp_path).caveats
    assert caveat.text.startswith("2 files of 2 processes (host_41, host_42) ")
    assert "name them rank0.json" in caveat.text


def nsight(path: Path) -> None:
    path.write_bytes(bytes(100))


def database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table kernels (start)")
    connection.commit()
    connection.close()


def snapshot(path: Path) -> None:
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))


def browser(path: Path) -> None:
    rows = [
        {"ph": "X", "cat": "devtools.timeline", "name": "RunTask", "pid": 1, "tid": 2, "ts": n, "dur": 5}
        for n in (1, 9)
    ]
    path.write_text(json.dumps({"traceEvents": rows}))


@pytest.mark.parametrize(
    ("name", "make", "what"),
    [
        ("job.nsys-rep", nsight, "a report of Nsight Systems; `nsys stats`"),
        ("job.ncu-rep", nsight, "a report of Nsight Compute; ncu-ui"),
        ("job.sqlite", database, "an SQLite database, as `nsys export`"),
        ("job.pickle", snapshot, "_dump_snapshot, `traceq show` and `traceq diff`"),
        ("snapshot_3.pickle", snapshot, "_dump_snapshot, `traceq show` and `traceq diff`"),
        ("job.json", browser, "browser, with 2 events .* `devtools.timeline`"),
    ],
)
def test_a_file_of_another_program_is_refused_for_what_it_is(
    name: str, make: object, what: str, tmp_path: Path
) -> None:
    make(tmp_path / name)  # type: ignore[operator]
    with pytest.raises(UnreadableInput, match=r"expected a Kineto trace") as refused:
        read(tmp_path / name)
    assert re.search(what, str(refused.value))


def test_a_title_keeps_its_dots(tmp_path: Path) -> None:
    sides = [
        window(tmp_path, name, dur) for name, dur in (("Qwen1.5-0.5B", 100), ("Qwen1.5-1.8B_7.1700000000001", 110))
    ]
    result = diff(*map(str, sides))
    assert (result.a_name, result.b_name) == ("Qwen1.5-0.5B", "Qwen1.5-1.8B")
    assert traceq("show", str(sides[0])).code == 0


PROFILED = """
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
model = torch.nn.Linear(16, 16)
turns = schedule(wait=1, warmup=1, active=2, repeat=2)
handler = tensorboard_trace_handler(str(folder / "log"), f"worker{rank}", use_gzip=True)
with profile(activities=[ProfilerActivity.CPU], schedule=turns, on_trace_ready=handler) as profiler:
    for _ in range(8):
        loss = model(torch.randn(4, 16)).sum()
        loss.backward()
        torch.distributed.all_reduce(model.weight.grad)
        profiler.step()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_what_torchs_handler_for_tensorboard_writes_is_the_last_window_of_each_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="a trace is recorded")
    (tmp_path / "job.py").write_text(PROFILED)
    ranks = [subprocess.Popen([sys.executable, "job.py", str(tmp_path), str(rank)], cwd=tmp_path) for rank in (0, 1)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    run = read(tmp_path / "log")
    assert run.ranks == (0, 1)
    assert run.window is not None
    assert run.window.num == 2
    steps = analyze(run, "steps").tables[0].to_dicts()
    for rank in (0, 1):
        latest = max((tmp_path / "log").glob(f"worker{rank}.*"), key=lambda path: int(path.name.split(".")[1]))
        with gzip.open(latest) as file:
            rows = [row for row in json.load(file)["traceEvents"] if row["ph"] == "X"]
        expected = sorted(row["dur"] for row in rows if row["name"].startswith("ProfilerStep#"))
        assert len(expected) == 2
        times = sorted(row["dur_ns"] / 1000 for row in steps if row["rank"] == rank)
        assert times == pytest.approx(expected, abs=0.001)
