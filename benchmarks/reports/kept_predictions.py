"""Report: outputs of all batches are kept, with their graphs, for a metric at the end of the epoch.

Right answer: the predictions of each step stay, 768 KB of it: detach(), or count at once.
"""

from __future__ import annotations

import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Embedding(5_000, 64), torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 300)
)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
for _ in range(3):
    outputs, targets = [], []
    for _ in range(400):
        tokens, tags = torch.randint(0, 5_000, (16, 40)), torch.randint(0, 300, (16, 40))
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        outputs.append(logits)
        targets.append(tags)
    print((torch.cat(outputs).argmax(-1) == torch.cat(targets)).float().mean().item())  # noqa: T201
