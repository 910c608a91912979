"""Trainers that own their loop: the callbacks of docs/trainers.md, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from paths import DOCS
from torch.utils.data import DataLoader, Dataset

import traceq
from traceq.model import Run
from traceq.runs.read import read
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_lines

PAGE = DOCS / "trainers.md"
ENOUGH = 90  # optimizer steps, more than a recording of 32 takes on a CPU
pytestmark = [pytest.mark.torch, pytest.mark.skipif(torch.cuda.is_available(), reason="counts the steps of a CPU")]


def run_block(heading: str, **given: Any) -> None:
    """The Python of one part of the page, with what a reader would have built before it."""
    (part,) = (part for part in PAGE.read_text().split("\n## ") if part.startswith(f"{heading}\n"))
    (block,) = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), given)


def recorded(out: Path, arm: str = "") -> tuple[Run, list[StepLine]]:
    """The complete run at a path, with the traces of an arm, and its unprofiled steps."""
    run = read(out / arm)
    assert run.manifest is not None
    assert (run.manifest.status, run.manifest.fault) == ("complete", "")
    assert run.caveats == ()
    lines = (line for line in read_lines(RunFolder(out).samples(0)) if isinstance(line, StepLine))
    return run, [line for line in lines if line.pair >= 0]


def num_ops(run: Run, name: str) -> int:
    """Ops of a name in the traced steps."""
    (trace,) = run.traces
    return sum(trace.events.text(row) == name for row in range(len(trace.events)))


class Regression(Dataset[dict[str, torch.Tensor]]):
    """As many samples as asked for."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), index % 7 / 7), "labels": torch.zeros(1)}


@pytest.mark.slow
def test_a_stepper_shares_out_a_step_among_its_phases(tmp_path: Path) -> None:
    with traceq.record(tmp_path / "run", steps=32, trace_steps=2) as recording, recording.stepper() as steps:
        for _ in range(ENOUGH):
            for phase in ("forward", "backward"):
                steps.set_phase(phase)
                torch.ones(8).exp()
            steps.end_step()
    run, timed = recorded(tmp_path / "run")
    assert run.manifest is not None
    assert run.manifest.phases == ("dataload_wait", "forward", "backward")
    assert len(timed) == 32
    assert all(set(step.phases) == set(run.manifest.phases) for step in timed)
    assert all(sum(step.phases.values()) <= step.wall_ns for step in timed)
    assert num_ops(run, "aten::exp") == 2 * 2


def test_a_stepper_that_stops_early_leaves_a_recording_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with traceq.record(tmp_path / "run", steps=32) as recording, recording.stepper() as steps:
        for _ in range(9):
            steps.end_step()
    assert "the loop ended after 9 of " in capsys.readouterr().err


def test_the_trainer_of_transformers_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.chdir(tmp_path)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    arguments = transformers.TrainingArguments(
        output_dir="out",
        max_steps=ENOUGH,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    run_block(
        "Hugging Face Trainer",
        model=Model(),
        arguments=arguments,
        dataset=Regression(4 * ENOUGH),
        held_out=Regression(64),
    )
    run, timed = recorded(tmp_path / "trainer-run")
    assert {name for step in timed for name in step.phases} == {"dataload_wait", "forward_backward", "optimizer"}
    assert num_ops(run, "aten::linear") == 2 * 3  # micro-batches of three traced steps
    assert num_ops(run, "Optimizer.step#AdamW.step") == 3


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_trainer_of_lightning_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    monkeypatch.chdir(tmp_path)

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.noise = 7.0
            self.seen: list[float] = []
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            self.seen.append(self.noise)
            return (self.layer(batch["x"]) - batch["labels"]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    options = {
        "accelerator": "cpu",
        "accumulate_grad_batches": 2,
        "max_steps": 4 * ENOUGH,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    loader, module = DataLoader(Regression(16 * ENOUGH), batch_size=2), Module()
    run_block("Lightning", module=module, loader=loader, options=options, Trainer=lightning.Trainer)
    run, timed = recorded(tmp_path / "lightning-run", "on")
    assert {name for step in timed for name in step.phases} == {"dataload_wait", "forward", "backward", "optimizer"}
    assert num_ops(run, "aten::linear") == 2 * 3
    assert num_ops(run, "Optimizer.step#AdamW.step") == 3
    assert set(module.seen[::2]) == {0.0, 0.1, 7.0}
    assert module.seen[::2] == module.seen[1::2]  # both batches of a step run one arm
    assert module.noise == module.seen[-1] == 7.0
    assert len(traceq.diff(tmp_path / "lightning-run").diffs) == 1


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_exception_that_ends_a_training_is_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from traceq.integrations.lightning import TraceqCallback

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            if number == 9:
                raise ValueError("bad batch")
            return self.layer(batch["x"]).mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    monkeypatch.chdir(tmp_path)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(callbacks=[TraceqCallback("run")], accelerator="cpu", **options)
    with pytest.raises(ValueError, match="bad batch"):
        trainer.fit(Module(), DataLoader(Regression(64), batch_size=2))
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.fault) == ("failed", "ValueError: bad batch")


@pytest.mark.slow
def test_a_loop_of_accelerate_is_recorded_by_optimizer_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.chdir(tmp_path)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), DataLoader(torch.ones(4 * ENOUGH, 4), batch_size=2)
    )
    run_block("accelerate", accelerator=accelerator, model=model, optimizer=optimizer, loader=loader)
    run, timed = recorded(tmp_path / "accelerate-run")
    assert {name for step in timed for name in step.phases} == {"dataload_wait", "forward", "backward", "optimizer"}
    assert num_ops(run, "aten::linear") == 2 * 3


@pytest.mark.slow
def test_events_of_any_other_trainer_end_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def train(events: Any) -> None:
        for number in range(2 * ENOUGH):
            events.batch_began()
            torch.ones(8).exp()
            if number % 9 == 8:
                torch.ones(8).log()
                events.evaluation_began()
            events.batch_ended()

    run_block("Any other trainer", train=train)
    run, timed = recorded(tmp_path / "other-run")
    assert {name for step in timed for name in step.phases} == {"dataload_wait", "train"}
    assert (num_ops(run, "aten::exp"), num_ops(run, "aten::log")) == (3, 0)
