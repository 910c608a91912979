"""Report: pytorch/pytorch#2769, the hidden state of one batch is the next one's, with its graph.

Right answer: each backward pass goes through the graphs of all batches so far: detach() the state.
"""

from __future__ import annotations

import torch

torch.set_num_threads(1)
cell, head = torch.nn.GRUCell(64, 256), torch.nn.Linear(256, 64)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-2)
hidden = torch.zeros(64, 256)
for _ in range(400):
    x = torch.randn(64, 64)
    hidden = cell(x, hidden)
    loss = (head(hidden) - x).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
