"""A path is a run: a file, a folder of ranks, a recorded run, or one arm of it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builder import Event, kernel, launch, op, step, world, write
from terminal import traceq

from traceq.errors import UnreadableInput, UsageFault
from traceq.model import Arm, Manifest, Run, Window
from traceq.runs.embedded_recording import Embedded, encode
from traceq.runs.read import read
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine


def rank(path: Path, number: int, *, busy: int = 10, origin: int = 0, size: int = 2) -> Path:
    """The trace of one rank whose only kernel takes `busy` us."""
    events = step(origin, 100), launch(origin + 1, 1, 1), kernel("gemm", origin + 5, busy, 1)
    return write(path, *events, **world(number, size))


def codes(run: Run) -> list[str]:
    return [caveat.code for caveat in run.caveats]


def show_json(*arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(traceq("show", "--json", *arguments).out)
    return result


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for number in (2, 0, 1):
        rank(tmp_path / f"host{9 - number}.pt.trace.json.gz", number, busy=10 + number, size=3)
    return tmp_path


def test_a_folder_is_read_by_rank_from_the_metadata(job: Path) -> None:
    run = read(job)
    assert (run.ranks, codes(run)) == ((0, 1, 2), [])
    kernels = [(result["rank"], result["gpu_ns"]) for result in show_json(job)["kernels"]]
    assert kernels == [(0, 10_000), (1, 11_000), (2, 12_000)]


def test_a_folder_of_a_folder_for_each_rank_is_a_job(tmp_path: Path) -> None:
    for number in (0, 1):
        rank(tmp_path / f"rank{number}" / f"host_{number}.pt.trace.json", number)
    assert (read(tmp_path).ranks, read(tmp_path, ranks=[1]).ranks) == ((0, 1), (1,))
    with pytest.raises(UsageFault, match="rank 7; expected ranks 0-1"):
        read(tmp_path, ranks=[7])


def test_the_manifest_of_a_recording_tells_the_host_where_the_profiler_does_not(tmp_path: Path) -> None:
    manifest = Manifest(1, "id", "r", "q", {}, (Arm("on", "m", baseline=True),), (), 3, 0, hosts=("a", "b"))
    noted: list[dict[str, Any]] = [{}, {}, {}, {"host_name": "c"}]
    for number, more in enumerate(noted):
        more = {**more, **world(number, 4), "traceq": encode(Embedded(manifest, "on"))}
        write(tmp_path / f"rank{number}.json", step(0, 10), op("f", 1, 2), **more)
    assert [trace.host for trace in read(tmp_path).traces] == ["a", "b", "", "c"]


def test_tables_for_people_add_the_ranks_up(job: Path) -> None:
    out = traceq("show", "--only", "kernels", job).out
    assert "Kernels (sum of 3 ranks, whole trace)" in out
    assert "33.0 us" in out
    assert "3 of 3 ranks" in out


def test_one_bad_rank_is_reported_and_the_rest_is_shown(job: Path) -> None:
    bad = job / "host5.json"
    bad.write_bytes(b"\x89PNG\r\n")
    run = read(job)
    assert (run.ranks, codes(run)) == ((0, 1, 2), ["unreadable_rank"])
    done = traceq("show", job)
    assert (done.code, done.err) == (0, f"traceq: note: {bad}: a PNG image; expected a Kineto trace (JSON)\n")
    with pytest.raises(UnreadableInput, match="a PNG image"):
        read(job, strict=True)


def test_a_cut_rank_is_named_in_its_caveat(job: Path) -> None:
    cut = rank(job / "host8.pt.trace.json", 1, size=3)
    (job / "host8.pt.trace.json.gz").unlink()
    cut.write_bytes(cut.read_bytes()[:-3])
    (caveat,) = read(job).caveats
    assert (caveat.code, caveat.text.startswith(f"{cut}: byte ")) == ("truncated", True)


def test_when_every_rank_is_bad_the_first_reason_is_the_error(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(UnreadableInput, match=r"a\.json: a JSON object .* keys none"):
        read(tmp_path)


def test_of_several_windows_of_a_rank_the_latest_counts(tmp_path: Path) -> None:
    early = rank(tmp_path / "host.1.pt.trace.json", 0, origin=1000)
    late = rank(tmp_path / "host.0.pt.trace.json", 0, origin=5000)
    run = read(tmp_path)
    assert [trace.path for trace in run.traces] == [str(late)] != [str(early)]
    assert run.window == Window(2, str(late))
    shown = traceq("show", tmp_path)
    assert shown.out.splitlines()[0].startswith(f"{tmp_path} · latest of 2 windows: {late.name} · ")
    assert "windows" not in shown.err
    source = show_json(tmp_path)["source"]
    assert (source["window"], source["num_windows"]) == (str(late), 2)


def test_ranks_of_unlike_numbers_of_windows_are_a_doubt(tmp_path: Path) -> None:
    for number in range(3):
        rank(tmp_path / f"rank0.{number}.json", 0, origin=1000 * number)
    rank(tmp_path / "rank1.json", 1)
    run = read(tmp_path)
    assert (run.window, codes(run)) == (None, ["several_windows"])


def test_stacks_flight_records_and_hidden_files_are_no_ranks(job: Path) -> None:
    (job / "rank0.flight.json").write_text('{"entries": []}', encoding="utf-8")
    for name in ("rank0.stacks.json.gz", ".rank0.json.gz.part", ".rank9.json", "notes.txt"):
        (job / name).write_bytes(b"not a trace")
    assert (read(job).ranks, codes(read(job))) == ((0, 1, 2), [])


def test_ranks_that_are_not_asked_for_are_left_out(job: Path) -> None:
    assert show_json("--ranks", "0,2", job)["source"]["ranks"] == [0, 2]
    assert show_json("--ranks", "1-7", job)["source"]["ranks"] == [1, 2]
    nobody = traceq("show", "--ranks", "9", job)
    assert nobody.code == 2
    assert nobody.err.startswith(f"traceq: {job}: ")
    assert nobody.err.endswith(" rank 9; expected ranks 0-2\n")


def test_a_rank_told_by_its_name_is_not_even_opened(tmp_path: Path) -> None:
    rank(tmp_path / "rank0.json", 0)
    (tmp_path / "rank1.json").write_bytes(b"broken")
    run = read(tmp_path, ranks={0})
    assert (run.ranks, codes(run)) == ((0,), [])


@pytest.fixture
def recorded(tmp_path: Path) -> RunFolder:
    arms = Arm("off", "before", baseline=True), Arm("on", "after")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_manifest(Manifest(1, "id", "recipe", "?", {}, arms, (), num_ranks=2, seed=0, status="complete"))
    for arm, busy in (("off", 10), ("on", 20)):
        for number in (0, 1):
            rank(folder.trace(arm, number), number, busy=busy)
    return folder


def test_a_run_is_its_baseline_and_a_folder_in_it_that_arm(recorded: RunFolder) -> None:
    assert [(result["rank"], result["gpu_ns"]) for result in show_json(recorded.path)["kernels"]] == [
        (0, 10_000),
        (1, 10_000),
    ]
    on = read(recorded.path / "on")
    assert (on.arm, on.ranks, on.manifest and on.manifest.recipe) == ("on", (0, 1), "recipe")


def test_a_run_that_broke_off_is_shown_and_says_so(recorded: RunFolder) -> None:
    arms = Arm("off", "before", baseline=True), Arm("on", "after")
    fault = "rank 1 was killed by SIGKILL"
    manifest = Manifest(1, "id", "recipe", "?", {}, arms, (), num_ranks=2, seed=0, status="failed", fault=fault)
    recorded.write_manifest(manifest)
    recorded.trace("off", 1).unlink()
    run = read(recorded.path)
    assert run.ranks == (0,)
    assert [caveat.text for caveat in run.caveats] == [f"the recording is incomplete (failed): {fault}"]


@pytest.mark.parametrize(
    ("pairs", "steps"),
    [
        ((), "no step of arm off "),
        ((-1, -1), "2 steps of arm off none "),
        ((-1, 0, 1, 2), "4 steps of arm off 3 "),
    ],
)
def test_a_run_that_broke_off_untraced_says_how_far_it_got(
    pairs: Sequence[int], steps: str, recorded: RunFolder
) -> None:
    for arm in ("off", "on"):
        shutil.rmtree(recorded.path / arm)
    manifest = replace(recorded.read_manifest(), status="interrupted", fault="KeyboardInterrupt", recipe="")
    recorded.write_manifest(manifest)
    recorded.steps.mkdir()
    lines = [StepLine("off", "off", "on", pair, 0, 0, {}, 9, 0, 0, 0) for pair in pairs]
    recorded.samples(0).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    (caveat,) = read(recorded.path).caveats
    assert caveat.code == "incomplete_run"
    assert re.search(rf" \(interrupted\): KeyboardInterrupt; .*{steps}.*, and none traced; ", caveat.text)
    assert caveat.text.endswith(": traceq record -- COMMAND")


def test_metadata_of_a_recording_that_cannot_be_decoded_is_a_caveat(tmp_path: Path) -> None:
    events: tuple[Event, ...] = (step(0, 10), op("aten::mm", 1, 2))
    run = read(write(tmp_path / "rank0.json", *events, traceq="not base64!"))
    assert (codes(run), run.manifest) == (["metadata"], None)
