"""Report: huggingface/accelerate#106, accumulation under accelerate without `accumulate` (torchrun --nproc-per-node 2).

Right answer: each of three backward passes reduces all gradients; two of them are wasted, which no_sync() saves.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(768, 768), torch.nn.ReLU())]
network = torch.nn.Sequential(*layers)
model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=1e-3))
for batch in range(6_000):
    x = torch.randn(16, 768)
    accelerator.backward((model(x) - x).square().mean() / 3)
    if batch % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
