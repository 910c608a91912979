"""Report: lightseekorg/TorchSpec#13, ranks pad to their own longest sequence, and faster ones idle in the all-reduce.

Run by torchrun --nproc-per-node 2, with --steps 200: fewer name no rank. Right answer: one is late, by more work.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(1000, 64), layer, torch.nn.Linear(64, 1000)))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(1_000):
    longest = int(torch.randint(140, 160, ())) if rank else int(torch.randint(60, 80, ()))
    tokens = torch.randint(0, 1000, (8, longest))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
dist.destroy_process_group()
