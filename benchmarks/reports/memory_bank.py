"""Report: a memory bank of features without a bound, with which each step compares its own.

Right answer: steps grow longer, as the bank does.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy, normalize

torch.set_num_threads(1)
encoder = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-3)
bank = torch.zeros(0, 64)
for _ in range(1_500):
    features = normalize(encoder(torch.randn(256, 128)), dim=1)
    keys = torch.cat([bank, features])
    loss = cross_entropy(features @ keys.T / 0.1, torch.arange(len(bank), len(bank) + 256))
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    bank = torch.cat([bank, features.detach()])
