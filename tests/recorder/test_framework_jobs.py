"""Jobs of training frameworks, unedited: the step, its phases, and an arm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import accelerate, torchrun
from paths import ROOT
from recording import MAIN

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

import torch

import traceq
from traceq.recorder.jobs.loop_hooks import imported_functions, owners
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_lines

JOBS = Path(__file__).parents[1] / "support" / "framework_jobs"
pytestmark = pytest.mark.torch


def record(folder: Path, *words: str) -> RunFolder:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*MAIN[:-2], "--out", "run", "--steps", "32", "--trace-steps", "1", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return RunFolder(folder / "run")


def uncovered(run: RunFolder) -> float:
    """Return the share of the timed steps of rank 0 that is in no phase."""
    steps = [line for line in read_lines(run.samples(0)) if isinstance(line, StepLine) and line.pair >= 0]
    return 1 - sum(sum(step.phases.values()) for step in steps) / sum(step.wall_ns for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_lightning_trainer_is_recorded_unedited(num_ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    toggle = ("--toggle", "@optimizer=foreach,fused")
    run = record(tmp_path, *toggle, "--", sys.executable, str(JOBS / "lightning_job.py"), str(num_ranks))
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", num_ranks)
    assert str(manifest.environment["step_pattern"]).startswith("batch, forward, backward, optimizer ")
    expected = {"dataload_wait", "forward", "backward", "clip_grad", "optimizer", "zero_grad", "lr_scheduler"}
    expected |= {"callbacks", "module_hooks", "log", "h2d"} | ({"sigterm_broadcast"} if num_ranks > 1 else set())
    assert set(manifest.phases) == expected
    assert uncovered(run) < 0.2  # by `make jobs` a tenth; other processes disturb a test


@pytest.mark.slow
def test_a_trainer_of_transformers_is_recorded_unedited(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    toggle = ("--toggle", "@attention=sdpa,eager")
    run = record(tmp_path, *toggle, "--", sys.executable, str(JOBS / "transformers_job.py"))
    manifest = run.read_manifest()
    assert manifest.status == "complete"
    assert str(manifest.environment["step_pattern"]).startswith(
        "batch, batch, forward, backward, forward, backward, optimizer "
    )
    assert {"forward", "backward", "clip_grad", "optimizer", "lr_scheduler", "callbacks"} <= set(manifest.phases)
    assert [arm.status for arm in manifest.arms] == ["", ""]
    assert uncovered(run) < 0.2


@pytest.mark.slow
def test_an_engine_of_deepspeed_is_recorded_unedited(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    run = record(tmp_path, "--", *torchrun(2, str(JOBS / "deepspeed_job.py")))
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", 2)
    assert set(manifest.phases) == {"dataload_wait", "forward", "backward", "optimizer"}
    assert uncovered(run) < 0.2


def test_functions_of_frameworks_that_are_not_there_are_no_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer version may have renamed them."""
    module = type(sys)("transformers.trainer_callback")
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", module)
    assert "callbacks" not in {phase for owner, _, phase in imported_functions() if owner is module}

    class CallbackHandler:
        def call_event(self) -> None: ...

    module.CallbackHandler = CallbackHandler  # type: ignore[attr-defined]
    assert (CallbackHandler, "call_event", "callbacks") in set(imported_functions())


def test_modules_of_a_framework_are_found_inside_wrappers() -> None:
    class LightningModule(torch.nn.Module): ...

    class Model(LightningModule): ...

    model = Model()
    assert owners([torch.nn.Sequential(model)], "LightningModule") == [model]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate launch"])
def test_questions_to_a_policy_trained_with_accelerate_are_answered_by_one_recording(
    launcher: str, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    toggles = {
        "policy.config.warn_outlier_threshold=0,10": ("warn_outlier_threshold=10", "aten::item", 1),
        "config.metrics_every=1,10": ("metrics_every=10", "c10d::allgather_", -1),
        "@optimizer=default,fused": ("optimizer=fused", "aten::_fused_adamw_", 1),
        "@find_unused=off,on": ("find_unused=on", "search_unused_parameters", 1),
        "@attention=sdpa,math": ("attention=math", "SafeSoftmaxBackward0", 1),
    }
    script = str(JOBS / "accelerate_job.py")
    command = torchrun(2, script) if launcher == "torchrun" else accelerate("ddp", script)
    words = [word for toggle in (*toggles, "@checkpointing=off,on") for word in ("--toggle", toggle)]
    run = record(tmp_path, "--steps", "16", *words, "--", *command)
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", 2)
    assert [arm.status for arm in manifest.arms] == [""] * 7  # each is proven by other ops
    causes = {diff.b_name: diff.causes for diff in traceq.diff(tmp_path / "run").diffs}
    for arm, op, sign in toggles.values():
        assert any(op in cause.name and sign * cause.delta_num > 0 for cause in causes[arm]), arm


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate launch"])
def test_what_accelerate_compiles_is_compared_with_eager_on_two_ranks(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    script = str(JOBS / "accelerate_job.py")
    if launcher == "torchrun":
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
        command = torchrun(2, script)
    else:
        command = accelerate("ddp", "--dynamo_backend", "aot_eager", script)
    run = record(tmp_path, "--steps", "16", "--toggle", "@compile=off,on", "--", *command)
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", 2)
    assert [arm.status for arm in manifest.arms] == ["", ""]  # proven by other ops
    (diff,) = traceq.diff(tmp_path / "run").diffs
    assert any("CompiledFunctionBackward" in cause.name and cause.delta_num > 0 for cause in diff.causes)
