"""A training job of short steps in which something becomes slower from a step on.

    watched_job.py STEPS [ONSET KIND]

MORE_S in the environment: how much longer, s. SLEEPS: ranks wait as for a device, where cores are too few for those
that spin. KIND: rank (the last one computes longer), loader, leak, gc, cpu (all threads on one core), evaluations (no
onset).
"""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

NUM_STEPS = int(sys.argv[1])
ONSET = int(sys.argv[2]) if len(sys.argv) > 2 else NUM_STEPS
KIND = sys.argv[3] if len(sys.argv) > 3 else ""
BUSY_S, MORE_S = 0.003, float(os.environ.get("MORE_S", "0.0006"))
leaked = []


def busy(seconds: float) -> None:
    if "SLEEPS" in os.environ:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def slower(seconds: float) -> None:
    busy(seconds)


class Batches(Dataset):
    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if KIND == "loader" and index >= ONSET:
            time.sleep(MORE_S)
        return torch.ones(64)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.num = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        busy(BUSY_S)
        if self.num >= ONSET and KIND == "rank" and rank == size - 1:
            slower(MORE_S)
        self.num += self.training
        return self.layer(batch)


torch.set_num_threads(1)
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
model = Model()
if size > 1:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for number, batch in enumerate(DataLoader(Batches(), batch_size=1)):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number >= ONSET and KIND == "leak":
        leaked.append(torch.ones(1 << 16).clone())
    if number >= ONSET and KIND == "gc":
        cycles = [[] for _ in range(5000)]
        gc.collect(0)
    if number == ONSET and KIND == "cpu":
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {0})
    if KIND == "evaluations" and number % 500 == 499:
        with torch.no_grad():
            for _ in range(5):
                model(batch)
if size > 1:
    dist.destroy_process_group()
