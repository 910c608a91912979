"""Report: pytorch/pytorch#5309, slow optimization with a vocabulary of 500,000 words.

Right answer: the gradient of the embedding is dense, 30 million elements for 640 tokens: sparse=True.
"""

from __future__ import annotations

import torch

torch.set_num_threads(1)
words = torch.nn.Embedding(300_000, 100)
encoder = torch.nn.GRU(100, 64, batch_first=True)
head = torch.nn.Linear(64, 20)
optimizer = torch.optim.SGD([*words.parameters(), *encoder.parameters(), *head.parameters()], lr=0.1)
for _ in range(2_000):
    tokens, labels = torch.randint(0, 300_000, (32, 20)), torch.randint(0, 20, (32,))
    _, state = encoder(words(tokens))
    loss = torch.nn.functional.cross_entropy(head(state[0]), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
