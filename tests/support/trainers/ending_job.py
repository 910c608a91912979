"""Train by a plain loop, transformers or lightning into run, and end in step argv[3] in the way of argv[2]."""

# mypy: ignore-errors
from __future__ import annotations

import gc
import json
import os
import signal
import sys
import warnings

import torch

import traceq

OPTIONS = {"steps": 8, "trace_steps": 2, "device": "cpu"}
NUM_STEPS = 40


class Model(torch.nn.Module):
    """Ends the training, or the process, in one of its steps."""

    def __init__(self, how: str, last: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.how, self.last, self.num_steps = how, last, 0
        self.stop = None

    def forward(self, x, **_):
        self.num_steps += 1
        if self.num_steps == self.last:
            if self.how == "raise":
                raise ValueError("bad batch")
            if self.how == "exit":
                sys.exit(3)
            if self.how == "_exit":
                os._exit(3)
            if self.how.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[self.how])
            if self.how == "stop":
                self.stop()
        return {"loss": self.layer(x).square().mean()}


class Left(Exception):
    """Leaves the plain loop."""


def train_plain(model, batches) -> None:
    def leave() -> None:
        raise Left

    model.stop = leave
    with traceq.record("run", **OPTIONS) as recording:
        try:
            for batch in recording.steps(batches):
                model(batch["x"][None])["loss"].backward()
        except Left:
            pass


def train_transformers(model, batches) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from traceq.integrations.transformers import TraceqCallback

    class Stop(TrainerCallback):
        def on_train_begin(self, _, __, control, **___) -> None:
            model.stop = lambda: setattr(control, "should_training_stop", True)

    arguments = TrainingArguments(
        "out",
        num_train_epochs=1,
        per_device_train_batch_size=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=batches, callbacks=[Stop(), TraceqCallback("run", **OPTIONS)]).train()


def train_lightning(model, batches) -> None:
    from lightning import LightningModule, Trainer

    from traceq.integrations.lightning import TraceqCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(batch["x"])["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=[TraceqCallback("run", **OPTIONS)], **silent)
    model.stop = lambda: setattr(trainer, "should_stop", True)
    trainer.fit(Module(), torch.utils.data.DataLoader(batches))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts by `&`
    kind, how, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
    batches = [{"x": torch.ones(4)}] * (last if how == "fewer" else NUM_STEPS)
    {"plain": train_plain, "transformers": train_transformers, "lightning": train_lightning}[kind](
        Model(how, last), batches
    )
    state = {"profiler": torch._C._autograd._profiler_enabled(), "gc": gc.isenabled(), "tracer": sys.gettrace() is None}
    sys.stdout.write(f"\n{json.dumps(state)}\n")
