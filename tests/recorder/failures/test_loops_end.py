"""Whatever way a recorded loop ends, at whatever stage: the process goes on as if it had never been recorded."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import traceq
from traceq.recorder.user_loop import Session
from traceq.runs.run_folder import RunFolder

pytestmark = [pytest.mark.torch, pytest.mark.skipif(torch.cuda.is_available(), reason="counts the steps of a CPU")]

OPTIONS: dict[str, Any] = {"steps": 8, "trace_steps": 2}
NUM_STEPS = 8 + 2 + 8 + 3 + 4  # timed, a settling pair, warm-up, the window with stacks, the window
STAGES = {"warm-up": 3, "timing": 14, "stacks": NUM_STEPS - 4, "window": NUM_STEPS - 1, "after": NUM_STEPS + 3}
AT_STAGES = pytest.mark.parametrize(
    "stage",
    [stage if stage == "stacks" else pytest.param(stage, marks=pytest.mark.slow) for stage in STAGES],
)
ENOUGH = NUM_STEPS + 9
WAYS = ("raise", *(pytest.param(way, marks=pytest.mark.slow) for way in ("break", "fewer")))


class Ended(Exception):
    """The loop's own exception."""


def state() -> dict[str, object]:
    """What a recording changes in its process."""
    return {
        "profiler": torch._C._autograd._profiler_enabled(),
        "gc": gc.isenabled(),
        "tracer": sys.gettrace(),
        "profile": sys.getprofile(),
        "group": dist.is_initialized(),
        "threads": {thread.name for thread in threading.enumerate() if not thread.name.startswith("Thread-")},
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)},
        "optimizer": torch.optim.Optimizer.step,
    }


@pytest.fixture
def config() -> Iterator[SimpleNamespace]:
    """An object of the loop that the arms change; the state of the process is as before once the test has ended."""
    before = state()
    config = SimpleNamespace(threshold=3)
    yield config
    assert state() == before
    assert config.threshold == 3


def check(out: Path, num_seen: int, *, fault: str = "") -> None:
    """Assert that the run says how it ended, and that no window is on disk that was not recorded to its end."""
    folder = RunFolder(out)
    manifest = folder.read_manifest()
    if num_seen > NUM_STEPS:
        assert (manifest.status, manifest.fault) == ("complete", "")
    else:
        assert manifest.status == "failed"
        assert fault in manifest.fault
        assert f"after {num_seen - 1} of " in manifest.fault or fault
    assert folder.trace("run", 0).is_file() == (num_seen > NUM_STEPS)
    assert folder.stacks("run", 0).is_file() == (num_seen > STAGES["stacks"])
    assert not list(out.rglob("*.part"))


def batches(how: str, step: int) -> Iterator[torch.Tensor]:
    return iter([torch.ones(2, 4)] * (step if how == "fewer" else ENOUGH))


def step_of(model: torch.nn.Module, how: str, is_last: bool) -> bool:
    """Run a step; return True where the loop is to be left."""
    model(torch.ones(2, 4)).mean().backward()
    if is_last and how == "raise":
        raise Ended
    return is_last and how == "break"


@pytest.mark.slow
@AT_STAGES
@pytest.mark.parametrize("how", [*WAYS, "return", "held"])
def test_a_plain_loop(how: str, stage: str, config: SimpleNamespace, tmp_path: Path) -> None:
    model, held = torch.nn.Linear(4, 1), list[Iterator[torch.Tensor]]()

    def train(recording: Session) -> None:
        steps = recording.steps(batches(how, STAGES[stage]))
        if how == "held":
            held.append(steps)
        for number, _ in enumerate(steps, 1):
            is_last = number == STAGES[stage]
            if step_of(model, "break" if how == "held" else how, is_last):
                break
            if is_last and how == "return":
                return

    with suppress(Ended), traceq.record(tmp_path / "run", **OPTIONS) as recording:
        recording.toggle(config, "threshold", run=7)
        train(recording)
    ended = STAGES[stage] + (how == "fewer")  # without a further batch the last step has its end
    check(tmp_path / "run", ended, fault="Ended" if how == "raise" else "")


@AT_STAGES
@pytest.mark.parametrize("how", WAYS)
def test_a_stepper(how: str, stage: str, config: SimpleNamespace, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    with suppress(Ended), traceq.record(tmp_path / "run", **OPTIONS) as recording, recording.stepper() as stepper:
        recording.toggle(config, "threshold", run=7)
        for number, _ in enumerate(batches(how, STAGES[stage]), 1):
            if step_of(model, how, number == STAGES[stage]):
                break
            stepper.end_step()
    check(tmp_path / "run", STAGES[stage] + (how == "fewer"), fault="Ended" if how == "raise" else "")


@pytest.mark.slow
@AT_STAGES
@pytest.mark.parametrize("how", WAYS)
def test_a_loop_of_accelerate(how: str, stage: str, config: SimpleNamespace, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from traceq.integrations.accelerate import recorded_batches

    accelerator = accelerate.Accelerator(cpu=True)
    model, backward = accelerator.prepare(torch.nn.Linear(4, 1)), accelerator.backward
    with suppress(Ended), traceq.record(tmp_path / "run", **OPTIONS) as recording:
        recording.toggle(config, "threshold", run=7)
        given = batches(how, STAGES[stage])
        for number, batch in enumerate(recorded_batches(recording, given, accelerator), 1):
            accelerator.backward(model(batch).mean())
            if step_of(model, how, number == STAGES[stage]):
                break
    assert accelerator.backward == backward
    check(tmp_path / "run", STAGES[stage] + (how == "fewer"), fault="Ended" if how == "raise" else "")


class Regression(torch.nn.Module):
    """A model that ends its training in step `last`."""

    def __init__(self, last: int, how: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.last, self.how, self.num_steps = last, how, 0
        self.stop: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.num_steps += 1
        if self.num_steps == self.last and self.how == "raise":
            raise Ended
        if self.num_steps == self.last and self.how == "break":
            self.stop()
        return {"loss": self.layer(x).square().mean()}


def data(how: str, step: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.ones(4)}] * (2 * (step if how == "fewer" else ENOUGH))


@pytest.mark.slow
@AT_STAGES
@pytest.mark.parametrize("how", WAYS)
def test_the_trainer_of_transformers(how: str, stage: str, config: SimpleNamespace, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from traceq.integrations.transformers import TraceqCallback

    model = Regression(STAGES[stage], how)

    class Stop(transformers.TrainerCallback):  # type: ignore[name-defined,misc]
        def on_train_begin(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            model.stop = lambda: setattr(control, "should_training_stop", True)

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    callback = TraceqCallback(tmp_path / "run", **OPTIONS).toggle(config, "threshold", run=7)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data(how, STAGES[stage]), callbacks=[Stop(), callback]
    )
    with suppress(Ended):
        trainer.train()
    check(tmp_path / "run", STAGES[stage] + (how != "raise"), fault="Ended" if how == "raise" else "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@AT_STAGES
@pytest.mark.parametrize("how", WAYS)
def test_the_trainer_of_lightning(how: str, stage: str, config: SimpleNamespace, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from traceq.integrations.lightning import TraceqCallback

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Regression(STAGES[stage], how)

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            self.model.stop = lambda: setattr(self.trainer, "should_stop", True)
            return self.model(batch["x"])["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    callback = TraceqCallback(tmp_path / "run", **OPTIONS).toggle(config, "threshold", run=7)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, callbacks=[callback], **dict.fromkeys(names, False))
    with suppress(Ended):
        trainer.fit(Module(), DataLoader(data(how, STAGES[stage]), batch_size=2))  # type: ignore[arg-type]
    check(tmp_path / "run", STAGES[stage] + (how != "raise"), fault="Ended" if how == "raise" else "")
