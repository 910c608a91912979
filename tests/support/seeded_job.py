"""A seeded job of one of many kinds: it writes each loss, to the last bit, and `done` once it has trained all steps.

A compiled one also writes how many graphs were compiled.
"""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

NUM_STEPS, FAILS_AT = 400, 30
COMPILED = {
    "inductor": {},
    "aot_eager": {"backend": "aot_eager"},
    "eager": {"backend": "eager"},
    "fullgraph": {"backend": "aot_eager", "fullgraph": True},
    "dynamic": {"backend": "aot_eager", "dynamic": True},
    "llama": {"backend": "aot_eager"},
}
KINDS = (
    *COMPILED,
    "plain",
    "checkpointing",
    "two_threads",
    "collecting",
    "exit_7",
    "child",
    "temporary_folder",
    "ctrl_c",
)


class Block(torch.nn.Module):
    """A layer whose forward has defaults: Dynamo guards on them."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, inputs, mask=None, scale=1.0):
        return torch.tanh(self.linear(inputs)) * scale if mask is None else inputs * mask


class Net(torch.nn.Module):
    def __init__(self, *, checkpoints=False):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.dropout, self.checkpoints = torch.nn.Dropout(0.1), checkpoints

    def forward(self, inputs):
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=False) if self.checkpoints else block(inputs)
        return self.dropout(inputs)


def train(step, model, path="losses"):
    """Train all steps and write their losses; `step` returns the loss of one."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with Path(path).open("w") as file:
        for number in range(NUM_STEPS):
            loss = step(number)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            file.write(f"{loss.item().hex()}\n")
    Path("done").touch()
    if sys.argv[1] in COMPILED:
        from torch._dynamo.utils import counters

        Path("graphs").write_text(str(counters["stats"]["unique_graphs"]))


def batch(number, generator=None):
    """Inputs of a step, of a size that varies where a kind compiles for that."""
    size = 4 + number % 3 if sys.argv[1] == "dynamic" else 4
    return torch.randn(size, 16, generator=generator)


def main(kind):
    torch.manual_seed(3)
    torch.set_num_threads(1)
    if kind == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        llama = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **sizes))
        compiled = torch.compile(llama, **COMPILED[kind])

        def of_llama(_):
            tokens = torch.randint(0, 64, (2, 16))
            return compiled(input_ids=tokens, labels=tokens).loss

        train(of_llama, llama)
        return
    if kind == "collecting":
        gc.freeze()  # what was imported, which would make each collection of a step one of 60 ms
    net = Net(checkpoints=kind == "checkpointing")
    model = torch.compile(net, **COMPILED[kind]) if kind in COMPILED else net

    def step(number):
        if kind == "collecting":
            gc.collect()
        if number == FAILS_AT and kind == "exit_7":
            sys.exit(7)
        if number == FAILS_AT and kind == "ctrl_c":
            os.kill(os.getpid(), signal.SIGINT)
        return model(batch(number)).square().mean()

    if kind == "two_threads":
        threads = [threading.Thread(target=train_alone, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elif kind == "child":
        child = subprocess.Popen(["sleep", "600"])
        try:
            train(step, net)
        finally:
            child.terminate()
            child.wait()
    elif kind == "temporary_folder":
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "data").write_text("data")
            train(step, net)
    else:
        train(step, net)


def train_alone(number):
    """Train a model of one thread, which shares no random numbers with the other."""
    generator = torch.Generator().manual_seed(number)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.1, 0.1, generator=generator)
    train(lambda step: model(batch(step, generator)).square().mean(), model, f"losses{number}")


if __name__ == "__main__":
    main(sys.argv[1])
