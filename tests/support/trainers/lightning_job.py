"""Train with Lightning; write a trace of six steps to argv[1], and to stdout the ns of each of their updates."""

# mypy: ignore-errors
from __future__ import annotations

import sys
import time
import warnings

import torch
from lightning import LightningModule, Trainer
from torch.profiler import ProfilerActivity, profile, schedule

WAIT, ACTIVE = 4, 6


class Net(LightningModule):
    """Four linear layers, whose update takes a third of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
        self.updates: list[int] = []

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), foreach=False)

    def on_train_start(self) -> None:
        self.profiler = profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=WAIT - 1, warmup=1, active=ACTIVE),
            on_trace_ready=lambda ready: ready.export_chrome_trace(sys.argv[1]),
        )
        self.profiler.start()

    def on_before_optimizer_step(self, optimizer) -> None:
        self.begins = time.perf_counter_ns()  # inside the closure, after backward

    def on_train_batch_end(self, *_) -> None:
        self.updates.append(time.perf_counter_ns() - self.begins)
        self.profiler.step()

    def on_train_end(self) -> None:
        self.profiler.stop()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    silent = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
    trainer = Trainer(max_steps=WAIT + ACTIVE + 1, accelerator="cpu", **silent)
    trainer.fit(net, torch.utils.data.DataLoader(torch.randn(2048, 512), batch_size=128))
    sys.stdout.write(f"\nupdates {' '.join(map(str, net.updates[WAIT : WAIT + ACTIVE]))}\n")
