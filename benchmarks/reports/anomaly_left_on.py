"""Report: yenchenlin/nerf-pytorch#42, set_detect_anomaly(True) at the top of a module of helpers.

Right answer: anomaly detection is left on, which takes half of the time.
"""

from __future__ import annotations

import torch

torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)


def encoded(points: torch.Tensor) -> torch.Tensor:
    return torch.cat([points, *(each(2.0**k * points) for k in range(6) for each in (torch.sin, torch.cos))], -1)


layers = [layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
network = torch.nn.Sequential(torch.nn.Linear(39, 64), *layers, torch.nn.Linear(64, 4))
optimizer = torch.optim.Adam(network.parameters(), lr=5e-4, fused=True)
for _ in range(3_000):
    points, wanted = torch.rand(8, 16, 3), torch.rand(8, 3)
    color, density = network(encoded(points)).split([3, 1], -1)
    alpha = 1 - torch.exp(-torch.relu(density.squeeze(-1)))
    passed = torch.cumprod(torch.cat([torch.ones(8, 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    loss = torch.nn.functional.mse_loss(((alpha * passed)[..., None] * torch.sigmoid(color)).sum(1), wanted)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
