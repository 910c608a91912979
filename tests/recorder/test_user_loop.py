"""A user's loop is recorded by two lines around it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
from paths import ROOT

pytest.importorskip("torch", reason="recording needs torch")

import torch
from builder import table
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import traceq
from traceq.errors import TraceqError
from traceq.model import WallTime
from traceq.recorder.timing import timed_steps
from traceq.recorder.user_loop import Session
from traceq.runs.embedded_recording import decode
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import read_pairs

pytestmark = [pytest.mark.torch, pytest.mark.skipif(torch.cuda.is_available(), reason="counts the steps of a CPU")]

NEEDED = 32 + 2 + 20 + 3 + 4  # timed steps, a settling pair, warm-up, a step with stacks, a window of two


def train(recording: Session, num_steps: int) -> int:
    model = torch.nn.Linear(8, 8)
    num_seen = 0
    for batch in recording.steps(torch.ones(2, 8) for _ in range(num_steps)):
        with recording.phase("forward"):
            loss = model(batch).square().mean()
        with recording.phase("bwd"):
            loss.backward()
        num_seen += 1
    return num_seen


def test_a_loop_leaves_a_run_with_one_arm(tmp_path: Path) -> None:
    with traceq.record(tmp_path / "run", arm="loop", steps=32, trace_steps=2, samples_per_rank=16) as recording:
        assert train(recording, NEEDED + 5) == NEEDED + 5
    folder = RunFolder(tmp_path / "run")
    manifest = folder.read_manifest()
    assert (manifest.status, manifest.baseline, manifest.num_ranks) == ("complete", "loop", 1)
    assert manifest.arms[0].samples_per_step == 16
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", manifest.started)
    assert manifest.phases == ("dataload_wait", "forward", "bwd")
    (figures,) = table(traceq.read(tmp_path / "run"), "step_profile")
    assert (figures["arm"], figures["warmup"], figures["measured"], figures["samples_per_step"]) == ("loop", 20, 32, 16)
    _, view = traceq.analyze(traceq.read(tmp_path / "run"), "step_profile").views
    assert [row[0] for row in view.rows] == ["dataload_wait", "forward", "bwd", "other", "total"]
    (control,) = read_pairs(folder.steps)
    assert (control.a, control.b, control.first_ns.shape) == ("loop", "loop", (1, 16))
    embedded = decode(json.loads(gzip.decompress(folder.trace("loop", 0).read_bytes()))["traceq"])
    assert embedded.lines is not None
    line = embedded.lines.lines[embedded.lines.table["forward|aten::linear"][0]]
    assert line.startswith("test_user_loop.py:")
    assert line.endswith(" train")


def test_a_loop_that_ends_early_is_reported_with_its_number_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with traceq.record(tmp_path / "run", steps=32, trace_steps=2) as recording:
        train(recording, 30)
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert manifest.status == "failed"
    assert manifest.fault.endswith(f" ended after 30 of {NEEDED} steps")
    _, ended = capsys.readouterr().err.splitlines()
    assert ended.startswith(f"traceq: {tmp_path / 'run'}: ")
    assert f": {manifest.fault}; " in ended
    assert ended.endswith(": traceq.record(..., steps=)")


@pytest.mark.slow
@pytest.mark.parametrize(("num_batches", "is_incomplete"), [(0, True), (NEEDED - 1, True), (NEEDED, False)])
def test_the_last_step_completes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_batches: int, is_incomplete: bool
) -> None:
    with traceq.record(tmp_path / "run", steps=32, trace_steps=2) as recording:
        train(recording, num_batches)
    assert (f"after {num_batches} of {NEEDED} steps" in capsys.readouterr().err) == is_incomplete


def test_rank_0_says_what_it_records_how_long_that_takes_and_what_to_type_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with traceq.record(tmp_path / "run", steps=32, trace_steps=2) as recording:
        for number, _ in enumerate(recording.steps(range(NEEDED + 5))):
            time.sleep(0.06 if number < 20 else 0)  # more than 2 s for the rest, as the warm-up has it
    first, rest, complete, command = capsys.readouterr().err.splitlines()
    assert first.startswith(f"traceq: recording {NEEDED} steps ")
    assert f" {tmp_path / 'run'}; " in first
    assert re.fullmatch(rf"traceq: 20 of {NEEDED} steps; .* \d\.\d\d s", rest)
    assert complete.endswith(f"complete, after {NEEDED} steps")
    assert command == f"traceq show {tmp_path / 'run' / 'run'}"


@pytest.mark.slow
def test_on_a_terminal_each_of_these_lines_has_a_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_steps, "_SHORT_NS", 0)
    with traceq.record(tmp_path / "run", steps=256, trace_steps=1) as recording:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        train(recording, 600)
    lines = [line for line in capsys.readouterr().err.splitlines() if "the rest takes about" in line]
    for line in lines:
        bar = line.removeprefix("traceq: ").partition(" ")[0]
        ended, planned = map(int, re.findall(r"\d+", line)[:2])
        assert (len(bar), bar.count("█"), bar.count("░")) == (20, 20 * ended // planned, 20 - 20 * ended // planned)
    assert len(lines) > 1


@pytest.mark.slow
def test_rank_0_says_each_quarter_how_long_the_rest_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_steps, "_SHORT_NS", 0)
    with traceq.record(tmp_path / "run", steps=256, trace_steps=1) as recording:
        train(recording, 600)
    lines = [line for line in capsys.readouterr().err.splitlines() if "the rest takes about" in line]
    ended, planned = zip(*(map(int, re.findall(r"\d+", line)[:2]) for line in lines), strict=True)
    assert len(set(planned)) == 1
    quarters = [4 * number // planned[0] for number in ended]
    assert quarters[0] == 0
    assert len(quarters) > 1
    assert len(set(quarters)) == len(quarters)


def test_a_loop_with_arms_ends_with_the_command_of_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with traceq.record(tmp_path / "run", arms=("off", "on"), steps=16, trace_steps=1) as recording:
        assert train(recording, 400) == 400
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"traceq diff {tmp_path / 'run'}",
        f"traceq show {tmp_path / 'run' / 'on'}",
    ]


@pytest.mark.slow
def test_the_profiler_of_a_loop_prints_nothing(tmp_path: Path) -> None:
    program = "import torch, traceq\nwith traceq.record('run', steps=16) as rec:\n    list(rec.steps(range(200)))\n"
    environment = {key: value for key, value in os.environ.items() if key != "KINETO_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if not line.startswith("traceq")] == []


@pytest.mark.slow
def test_a_second_recording_is_beside_the_first_or_in_its_place(tmp_path: Path) -> None:
    def recorded(*, overwrite: bool = False) -> tuple[str, str]:
        with traceq.record(tmp_path / "run", steps=16, trace_steps=0, overwrite=overwrite) as recording:
            train(recording, 40)
        return recording.folder.name, RunFolder(recording.folder).read_manifest().run_id

    first, second, third = recorded(), recorded(), recorded(overwrite=True)
    assert [first[0], second[0], third[0]] == ["run", "run-2", "run"]
    left = {RunFolder(folder).read_manifest().run_id for folder in tmp_path.iterdir()}
    assert left == {second[1], third[1]}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_refused_with_a_remedy_for_scripts(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "old").write_text("")
    refused = pytest.raises(TraceqError, match=r"another folder for traceq\.record\(\.\.\.\)$")
    with refused, traceq.record(tmp_path, overwrite=overwrite):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


README = ROOT / "README.md"
LOOKS_AT_THE_GROUP = """
import torch.distributed as dist
assert dist.is_initialized() == {has_group}
"""
STARTS_ONE = "import torch.distributed\ntorch.distributed.init_process_group('gloo')\n"


def under_torchrun(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "loop.py").write_text(program)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "loop.py"]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return subprocess.run(launcher, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("has_group", [False, True])
def test_the_example_of_the_readme_runs_under_torchrun_with_and_without_a_group(
    tmp_path: Path, has_group: bool
) -> None:
    """A group that the loop started stays; one that was started for the recording is destroyed after it."""
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    before = STARTS_ONE if has_group else ""
    done = under_torchrun(tmp_path, before + example + LOOKS_AT_THE_GROUP.format(has_group=has_group))
    assert done.returncode == 0, done.stderr
    folder = RunFolder(tmp_path / "my-run")
    manifest = folder.read_manifest()
    assert (manifest.status, manifest.num_ranks, manifest.environment["backend"]) == ("complete", 2, "gloo")
    assert [control.first_ns.shape[0] for control in read_pairs(folder.steps)] == [2]
    assert folder.trace("run", 1).is_file()


@pytest.mark.slow
def test_under_torchrun_each_rank_has_the_fault_of_rank_0_and_none_waits(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").write_text("")
    done = under_torchrun(tmp_path, "import traceq\nwith traceq.record('run'):\n    pass\n")
    assert done.returncode == 1
    assert done.stderr.count("TraceqError: run: exists ") == 2


@pytest.mark.parametrize("samples", [0, -8, 2.5])
def test_what_is_no_number_of_samples_is_refused_before_anything_is_written(tmp_path: Path, samples: float) -> None:
    with (
        pytest.raises(TraceqError, match=r"record\(samples_per_rank=\): found"),
        traceq.record(tmp_path / "run", samples_per_rank=samples),  # type: ignore[arg-type]
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_an_exception_in_the_loop_is_noted_and_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), traceq.record(tmp_path / "run") as recording:
        _ = [1 // batch for batch in recording.steps([2, 1, 0])]
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert manifest.status == "failed"
    assert manifest.fault.startswith("ZeroDivisionError: ")


@pytest.mark.parametrize("last", [10, 35, NEEDED - 2])
@pytest.mark.parametrize("part", ["", "steps"])
def test_a_loop_whose_run_is_deleted_goes_on_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, last: int
) -> None:
    run = tmp_path / "run"
    with traceq.record(run, steps=32, trace_steps=2) as recording:
        seen = 0
        for _ in recording.steps(range(NEEDED + 9)):
            seen += 1
            if seen == last:
                shutil.rmtree(run / part)
    assert seen == NEEDED + 9
    _, *ended = capsys.readouterr().err.splitlines()
    cause = f"{run / part}: was deleted during the recording"
    assert [line.endswith(f": {cause}") for line in ended] == [True]
    assert run.exists() == bool(part)
    if part:
        manifest = RunFolder(run).read_manifest()
        assert (manifest.status, manifest.fault) == ("failed", cause)


def test_a_loop_on_a_full_disk_goes_on_and_says_so_once(
    full_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with traceq.record(tmp_path / "run", steps=10_000) as recording:
        assert train(recording, 2000) == 2000
    manifest = RunFolder(full_disk).read_manifest()
    assert manifest.status == "failed"
    assert "No space left on device" in manifest.fault
    _, ended = capsys.readouterr().err.splitlines()
    assert ended.endswith(manifest.fault)


@pytest.mark.slow
def test_a_loop_that_changes_its_folder_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with traceq.record("run", steps=32, trace_steps=2) as recording:
        (tmp_path / "elsewhere").mkdir()
        os.chdir(tmp_path / "elsewhere")
        train(recording, NEEDED)
    assert RunFolder(tmp_path / "run").is_complete


def test_a_profiler_of_the_loop_ends_the_recording_alone(tmp_path: Path) -> None:
    with (
        traceq.record(tmp_path / "run", steps=32, trace_steps=2) as recording,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    ):
        assert train(recording, NEEDED) == NEEDED
    assert RunFolder(tmp_path / "run").read_manifest().fault.startswith("another profiler")


TWO_RANKS = """
import shutil, sys
import torch
import torch.distributed as dist
import traceq

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
with traceq.record("run", steps=32, trace_steps=2) as recording:
    for number, _ in enumerate(recording.steps(range(90))):
        if number == {last} and dist.get_rank() == 1:
            {fault}
        model(torch.ones(2, 8)).sum().backward()
if torch._C._autograd._profiler_enabled():
    profiler.stop()
dist.destroy_process_group()
print("trained")
"""
FAULTS = {
    "deleted": 'shutil.rmtree("run/steps")',
    "profiler": "(profiler := torch.profiler.profile()).start()",
}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "last"), [("deleted", 4), ("deleted", 30), ("deleted", 55), ("profiler", 30)])
def test_all_ranks_of_a_loop_go_on_once_one_of_them_cannot_be_recorded(tmp_path: Path, fault: str, last: int) -> None:
    done = under_torchrun(tmp_path, TWO_RANKS.format(last=last, fault=FAULTS[fault]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["trained"] * 2
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert manifest.status == "failed"
    assert manifest.fault.startswith("rank 1: another profiler" if fault == "profiler" else "rank "), done.stderr
    assert done.stderr.count(manifest.fault) == 1


def test_a_loop_with_two_arms_reads_the_arm_of_each_step(tmp_path: Path) -> None:
    class Config:
        threshold = 3

    config, seen = Config(), list[tuple[str, int]]()
    with traceq.record(tmp_path / "run", arms=("off", "on"), steps=16, trace_steps=1) as recording:
        recording.toggle(config, "threshold", off=0, on=10)
        for _ in recording.steps(range(400)):
            seen.append((recording.arm, config.threshold))
    assert set(seen) == {("off", 0), ("on", 10), ("off", 3)}  # the last: its own value, once all is recorded
    assert seen[-1] == ("off", 3)
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.baseline) == ("complete", "off")
    (diff,) = traceq.diff(tmp_path / "run").diffs
    assert (diff.a_name, diff.b_name) == ("off", "on")
    assert diff.comparison is not None


@pytest.mark.parametrize(
    ("arms", "name", "values", "message"),
    [
        (("off", "off"), "threshold", {}, "expected different names"),
        (("off", "on"), "thresold", {"off": 0, "on": 1}, "SimpleNamespace has no 'thresold'"),
        (("off", "on"), "threshold", {"off": 0}, "found values for off; "),
    ],
)
def test_toggles_that_cannot_be_are_refused(
    arms: tuple[str, ...], name: str, values: dict[str, int], message: str, tmp_path: Path
) -> None:
    from types import SimpleNamespace

    with pytest.raises(TraceqError, match=message), traceq.record(tmp_path / "run", arms=arms) as recording:
        recording.toggle(SimpleNamespace(threshold=1), name, **values)


class Slow(Dataset[torch.Tensor]):
    """Items that take 20 ms of one line."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return torch.randn(64)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_the_workers_of_a_loop_s_loader_are_seen(tmp_path: Path) -> None:
    of_torch = _MultiProcessingDataLoaderIter.__init__
    with traceq.record(tmp_path / "run", steps=16, trace_steps=24) as recording:
        for batch in islice(recording.steps(DataLoader(Slow(), batch_size=2, num_workers=1)), 80):
            batch.square().mean()
    assert _MultiProcessingDataLoaderIter.__init__ is of_torch
    run = traceq.read(tmp_path / "run")
    (profile,) = traceq.analyze(run, "step_profile").tables[0].to_dicts()
    assert (profile["num_workers"], profile["prefetch_factor"]) == (1, 2)
    assert "are in __getitem__, most at test_user_loop.py:" in traceq.analyze(run, "loader").views[0].note


def test_steps_that_a_loop_excludes_are_in_the_account_of_its_wall_time(tmp_path: Path) -> None:
    with traceq.record(tmp_path / "run", steps=8, trace_steps=0, device="cpu", samples_per_rank=4) as recording:
        for number in recording.steps(range(200)):
            if number % 5 == 4:
                recording.exclude_step()
    account = WallTime.of(RunFolder(tmp_path / "run").read_manifest().environment)
    assert account is not None
    nums = {part.name: part.num for part in account.parts if part.is_training}
    assert nums["other"] > 2
    assert account.samples == 4 * sum(nums.values())
