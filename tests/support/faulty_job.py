"""A training loop on all ranks, in one of whose steps rank 1 (or the only one) meets a fault."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def mean_loss(loss):
    value = torch.full((5, 5), loss)
    dist.all_reduce(value)
    return value


def all_losses(loss):
    losses = [torch.zeros(3) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, torch.full((3,), loss))
    return losses


class Config:
    value = 0


config = Config()


def fail(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(1e6)
    if how == "raise":
        raise ValueError("bad batch")
    if how == "exit":
        sys.exit(0)
    if how in ("memory", "memory of an arm"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def main(how, fault_step):
    model, has_peers, rank = torch.nn.Linear(64, 64), "RANK" in os.environ, 1
    if has_peers:
        dist.init_process_group("gloo", timeout=timedelta(seconds=5))
        model, rank = torch.nn.parallel.DistributedDataParallel(model), dist.get_rank()
    optimizer = torch.optim.AdamW(model.parameters())
    for number, batch in enumerate(torch.utils.data.DataLoader(torch.randn(10**6, 64), batch_size=4)):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        is_faulty = number == fault_step and rank == 1
        if how == "memory of an arm":
            is_faulty = number >= fault_step and rank == 1 and config.value == 1
        if is_faulty and how == "other":
            all_losses(loss.item())
        elif is_faulty:
            fail(how)
        if has_peers and not is_faulty:
            mean_loss(loss.item())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
