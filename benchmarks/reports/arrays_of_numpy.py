"""Report: dingo-gw/dingo#55, transforms of numpy turned inputs into float64, which slowed training down.

Right answer: ops compute in float64.
"""

from __future__ import annotations

import numpy as np
import torch

torch.set_num_threads(1)
rng = np.random.default_rng(0)
waveforms, targets = rng.standard_normal((4096, 512)), rng.standard_normal((4096, 15))
model = torch.nn.Sequential(
    torch.nn.Linear(512, 512), torch.nn.ELU(), torch.nn.Linear(512, 512), torch.nn.ELU(), torch.nn.Linear(512, 15)
).double()  # since the inputs are
optimizer = torch.optim.Adam(model.parameters(), fused=True)
for _ in range(3_000):
    chosen = rng.integers(0, len(waveforms), 256)
    inputs = torch.from_numpy(waveforms[chosen] + rng.standard_normal((256, 512)))
    loss = torch.nn.functional.mse_loss(model(inputs), torch.from_numpy(targets[chosen]))
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
