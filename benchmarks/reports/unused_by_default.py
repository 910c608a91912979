"""Report: Lightning-AI/pytorch-lightning#7330, find_unused_parameters=True by default (torchrun --nproc-per-node 2).

Right answer: every parameter of these 60 small blocks gets a gradient, so the search of each step is in vain.
"""

from __future__ import annotations

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
distributed.init_process_group("gloo")
blocks = [
    torch.nn.Sequential(torch.nn.LayerNorm(48), torch.nn.Linear(48, 96), torch.nn.SiLU(), torch.nn.Linear(96, 48))
    for _ in range(60)
]
model = DistributedDataParallel(torch.nn.Sequential(*blocks), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(5_000):
    x = torch.randn(8, 48)
    loss = torch.nn.functional.l1_loss(model(x), x)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
