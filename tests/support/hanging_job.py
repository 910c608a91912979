"""A training loop of which ranks hang in a step: `HOW` is sleep or stop (the last rank), all, or none."""

import os
import signal
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist

FAULT_STEP = 40


def hang(how):
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1e6)


def meet():
    if dist.is_initialized():
        dist.all_reduce(torch.ones(1))


def main(how, out, seconds):
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = torch.utils.data.DataLoader(torch.randn(10**5, 8), batch_size=4)
    with recorded(out) as recording:
        for number, batch in enumerate(recording.steps(batches) if recording else batches):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == FAULT_STEP and how == "slow":
                time.sleep(seconds)
            elif number == FAULT_STEP and how != "none" and (how == "all" or rank == size - 1):
                hang(how)
            meet()
    if dist.is_initialized():
        dist.destroy_process_group()


def recorded(out):
    if not out:
        return nullcontext()
    import traceq

    return traceq.record(out, steps=64, hang_after=3)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
