"""Dumps of NCCL's flight recorder: read without running anything, and asked who never arrived."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from builder import step, table, world, write
from typer.testing import CliRunner

from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim, Subject
from traceq.cli import app
from traceq.errors import UnreadableInput
from traceq.model import Arm, Manifest
from traceq.runs.flight_recorder import read_flight
from traceq.runs.plain_pickle import PickleRefused, load_plain
from traceq.runs.read import read
from traceq.runs.run_folder import RunFolder

Row = dict[str, Any]
TORCH = {"name": "all_reduce", "filename": "/site-packages/torch/distributed/distributed_c10d.py", "line": 3245}


def entry(sequence: int, state: str = "completed", name: str = "nccl:all_reduce", line: int = 41, **more: Any) -> Row:
    """An entry as version 2.x of the format has it."""
    return {
        "frames": [TORCH, {"name": "step", "filename": "/home/me/train.py", "line": line}],
        "record_id": sequence,
        "pg_id": 1,
        "process_group": ("7", "data_parallel"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + sequence,
        "input_sizes": ((10, 20),),
        "input_dtypes": ["Float"],
        "output_sizes": ((10, 20),),
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | more


def dumped(folder: Path, *ranks: list[Row] | None, size: int = 0) -> Path:
    """A dump of each rank; None for a rank that left none."""
    members = json.dumps(list(range(size or len(ranks))))
    config = {"7": {"name": "7", "desc": "data_parallel", "ranks": members}}
    for number, entries in enumerate(ranks):
        if entries is not None:
            dump = {"version": "2.10", "pg_config": config, "pg_status": {"1": {}}, "entries": entries}
            (folder / f"nccl_trace_rank_{number}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def claim_of(folder: Path) -> Claim:
    (claim,) = analyze(read(folder), "arrivals").findings
    return claim


WAITS = [entry(104), entry(105, "started", line=43)]


def test_who_never_arrived_is_named_with_what_it_did_last_and_where_the_others_wait(tmp_path: Path) -> None:
    run = dumped(tmp_path, WAITS, WAITS, [entry(103), entry(104, line=57)])
    claim = claim_of(run)
    assert claim.subject == Subject(collective="all_reduce", line="train.py:43 step", key="7|105")
    assert claim.measures == {
        "sequence": 105,
        "group": "7",
        "absent_ranks": "rank 2",
        "last_collective": "all_reduce",
        "last_sequence": 104,
        "last_line": "train.py:57 step",
        "waiting_ranks": "ranks 0-1",
    }
    rows = table(read(run), "arrivals")
    assert [(row["rank"], row["state"], row["sequence"], row["elements"], row["dtype"]) for row in rows] == [
        (0, "started", 105, 200, "float32"),
        (1, "started", 105, 200, "float32"),
        (2, "never arrived", 105, 200, "float32"),
    ]


def test_a_rank_that_queued_it_behind_something_else_is_told_from_one_that_never_came(tmp_path: Path) -> None:
    behind = [entry(104), entry(105, "scheduled", line=43)]
    measures = claim_of(dumped(tmp_path, WAITS, behind, WAITS)).measures
    assert (measures["queued_ranks"], measures["waiting_ranks"]) == ("rank 1", "ranks 0, 2")
    assert "absent_ranks" not in measures


def test_a_rank_without_a_dump_is_named_by_the_group_it_belongs_to(tmp_path: Path) -> None:
    measures = claim_of(dumped(tmp_path, WAITS, None, WAITS)).measures
    assert (measures["undumped_ranks"], measures["waiting_ranks"]) == ("rank 1", "ranks 0, 2")


def test_a_barrier_can_be_what_never_ended(tmp_path: Path) -> None:
    waits = [entry(9, "started", "nccl:all_reduce_barrier")]
    claim = claim_of(dumped(tmp_path, waits, [entry(8)]))
    assert (claim.subject.collective, claim.measures["sequence"]) == ("all_reduce_barrier", 9)
    assert claim.measures["absent_ranks"] == "rank 1"


def test_where_all_ended_nothing_is_said(tmp_path: Path) -> None:
    done = [entry(104), entry(105)]
    report = analyze(read(dumped(tmp_path, done, done, done[:1])), "arrivals")
    assert (report.tables[0].rows, report.views, report.findings) == ((), (), ())


def test_what_a_ring_of_entries_has_forgotten_was_completed(tmp_path: Path) -> None:
    later = [entry(300), entry(301)]
    rows = table(read(dumped(tmp_path, [entry(299, "started")], later)), "arrivals")
    assert [row["state"] for row in rows] == ["started", "completed"]


def test_the_first_of_several_that_did_not_end_counts(tmp_path: Path) -> None:
    several = [entry(104), entry(105, "started"), entry(106, "scheduled")]
    rows = table(read(dumped(tmp_path, several, several[:2])), "arrivals")
    assert {(row["sequence"], row["state"]) for row in rows} == {(105, "started")}


def test_a_desync_is_found_in_dumps_alone_with_the_line(tmp_path: Path) -> None:
    usual = [entry(n, line=40 + n % 10) for n in range(100, 106)]
    wrong = [*usual[:3], entry(103, name="nccl:broadcast", line=99), *usual[4:]]
    (finding,) = analyze(read(dumped(tmp_path, usual, wrong, usual)), "desync").findings
    assert (finding.measures["sequence"], finding.measures["group"]) == (103, "7")
    rows = table(read(tmp_path), "desync")
    assert [(row["name"], row["line"]) for row in rows] == [
        ("all_reduce", "train.py:43 step"),
        ("broadcast", "train.py:99 step"),
        ("all_reduce", "train.py:43 step"),
    ]


def test_a_folder_of_dumps_and_a_single_dump_are_shown(tmp_path: Path) -> None:
    dumped(tmp_path, WAITS, [entry(104)])
    for path in (tmp_path, tmp_path / "nccl_trace_rank_0"):
        shown = CliRunner().invoke(app, ["show", str(path)])
        assert shown.exit_code == 0, shown.output
        assert "all_reduce 105 of group 7" in shown.stdout
        result = json.loads(CliRunner().invoke(app, ["show", "--json", str(path)]).stdout)
        assert {row["sequence"] for row in result["arrivals"]} == {105}
    assert CliRunner().invoke(app, ["show", str(tmp_path), "--ranks", "7"]).exit_code == 1


@pytest.mark.parametrize(
    "command", [["open", "--no-browser"], ["export", "--to", "perfetto"], ["check", "--rule", "dtoh == 0"]]
)
def test_what_needs_traces_says_so(tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, [*command, str(dumped(tmp_path, WAITS))])
    assert isinstance(shown.exception, UnreadableInput)
    assert "no traces" in str(shown.exception)


def test_dumps_beside_traces_are_read_with_them(tmp_path: Path) -> None:
    dumped(tmp_path, WAITS, [entry(104)])
    for number in range(2):
        write(tmp_path / f"rank{number}.json", step(0, 100), **world(number, 2))
    run = read(tmp_path)
    assert (run.ranks, [flight.rank for flight in run.flights]) == ((0, 1), [0, 1])
    assert claim_of(tmp_path).measures["absent_ranks"] == "rank 1"


def test_a_window_that_traceq_recorded_is_not_stuck(tmp_path: Path) -> None:
    for number, entries in enumerate((WAITS, WAITS[:1])):
        (tmp_path / f"rank{number}.flight.json").write_text(json.dumps({"entries": entries}), "utf-8")
    assert table(read(tmp_path), "arrivals") == []


def test_older_dumps_number_and_name_groups_otherwise(tmp_path: Path) -> None:
    old = {
        key: value for key, value in entry(5, "started").items() if key not in ("collective_seq_id", "process_group")
    }
    dump = {"version": "2.0", "entries": [old | {"seq_id": 5}]}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    (row,) = table(read(tmp_path), "arrivals")
    assert (row["group"], row["sequence"], row["state"]) == ("1", 5, "started")


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch exploded",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"entries": [_Bomb()]}, protocol=protocol)
    with pytest.raises(PickleRefused, match=r"refers to (posix|nt)\.system"):
        load_plain(content)
    assert not (tmp_path / "exploded").exists()


def test_a_malicious_dump_is_one_line_and_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [_Bomb()]}, protocol=2))
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "nccl_trace_rank_0")])
    assert (shown.exit_code, isinstance(shown.exception, UnreadableInput | SystemExit)) == (1, True)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(UnreadableInput, match=r"nccl_trace_rank_0: .* (posix|nt)\.system; .*expected a flight"):
        read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80",
        b"\x80\x02",
        b"\x80\x02}q\x00.",
        b"\x80\x02]q\x00.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02(((((.",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pabc\n.",
        b"\x80\x02]q\x00}b.",
        b"\x80\x02K\x01K\x02R.",
        b"\x80\xfe.",
        pickle.dumps({"entries": [{"input_sizes": "x"}]}, protocol=2),
        pickle.dumps({"entries": 5}, protocol=2),
    ],
)
def test_a_damaged_pickle_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(content)
    with pytest.raises(UnreadableInput, match=r"nccl_trace_rank_0: .*expected a flight recorder's dump") as fault:
        read(tmp_path / "nccl_trace_rank_0")
    assert "\n" not in str(fault.value)


RECORDS = """
import sys, torch
from torch import distributed
from torch._C._distributed_c10d import _dump_fr_trace
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
distributed.all_reduce(torch.ones(5))
distributed.all_gather([torch.ones(3)], torch.ones(3))
open(sys.argv[1], "wb").write(_dump_fr_trace())
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(not os.environ.get("TRACEQ_RECORD"), reason="records; `make strategies` runs it")
def test_the_pickle_that_torch_itself_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "nccl_trace_rank_0"
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", RECORDS, str(path)], env=environment, check=True)
    (flight,) = read(path).flights
    assert (flight.name, flight.dtype) == (("gloo:all_reduce", "gloo:all_gather"), ("float32", "float32"))
    assert (flight.sequence.tolist(), flight.elements.tolist()) == ([1, 2], [5, 3])
    assert (flight.members, flight.state) == (("[0]", "[0]"), ("completed", "completed"))


def gave_up(folder: Path, rank: int, *entries: Row, waits_at: str) -> None:
    """What a rank of a recording leaves in `stalled` when a collective does not end."""
    dump = {"pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": entries, "waits_at": waits_at}
    path = RunFolder(folder).stalled(rank)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dump))


def test_what_stalled_ranks_left_is_shown_with_why_the_recording_ended(tmp_path: Path) -> None:
    arms = (Arm("off", "", baseline=True), Arm("on", ""))
    manifest = Manifest(1, "r", "r", "?", {}, arms, (), 2, 1, "failed", "the ranks stalled")
    RunFolder(tmp_path).write_manifest(manifest)
    usual = [entry(7, name="gloo:all_reduce"), entry(8, name="gloo:all_reduce")]
    gave_up(tmp_path, 0, *usual, waits_at="train.py:30 update")
    gave_up(tmp_path, 1, usual[0], entry(8, name="gloo:all_gather"), waits_at="train.py:41 agree")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "stalled")])
    assert shown.exit_code == 0, shown.output
    assert "desync at collective 8" in shown.stdout
    assert "rank 0: all_reduce float32 x 200" in shown.stdout
    assert "train.py:41 agree" in shown.stdout
    assert "incomplete (failed): the ranks stalled" in shown.output
    run = read(tmp_path / "stalled")
    assert [(row["rank"], row["sequence"], row["name"], row["waits_at"]) for row in table(run, "stalled")] == [
        (0, 8, "all_reduce", "train.py:30 update"),
        (1, 8, "all_gather", "train.py:41 agree"),
    ]
    assert [row["rank"] for row in table(read(tmp_path / "stalled", ranks=[1]), "stalled")] == [1]


def test_where_nobody_stalled_there_is_no_such_arm(tmp_path: Path) -> None:
    manifest = Manifest(1, "r", "r", "?", {}, (Arm("off", "", baseline=True),), (), 2, 1, "complete")
    RunFolder(tmp_path).write_manifest(manifest)
    with pytest.raises(UnreadableInput, match="no such arm"):
        read(tmp_path / "stalled")


def doubled(levels: int) -> bytes:
    """A pickle of a few bytes a level, each of which holds the one before twice."""
    value: list[object] = []
    for _ in range(levels):
        value = [value, value]
    return pickle.dumps({"entries": value}, 2)


def itself() -> bytes:
    value: list[object] = []
    value.append([value])
    return pickle.dumps({"entries": value}, 2)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (doubled(60), "expands to more than"),
        (doubled(12), "expands to more than"),
        (itself(), "expands to more than"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "its memo is larger"),
        (b"\x80\x02]p4294967295\n.", "its memo is larger"),
        (b"\x80\x05\x96\xff\xff\xff\xff\x7f\x00\x00\x00.", "it is damaged"),
        (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "expected a flight recorder"),
    ],
)
def test_a_pickle_takes_no_more_memory_than_its_size_allows(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableInput, match=problem):
            read_flight(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_frames_that_entries_share_are_read() -> None:
    frames = [{"name": f"f{number}", "filename": "a.py", "line": number} for number in range(30)]
    entries = [{"collective_seq_id": number, "frames": list(frames)} for number in range(500)]
    assert load_plain(pickle.dumps({"entries": entries}, 2)) == {"entries": entries}
