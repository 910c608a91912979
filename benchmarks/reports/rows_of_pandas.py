"""Report: braindecode/braindecode#89, `metadata.iloc[index]` for each item; without it training was 7 times as fast.

Right answer: the loader starves the step, at the line of the dataset that asks pandas.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Windows(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.signal = torch.randn(8, 100_000)
        self.metadata = pd.DataFrame({"start": rng.integers(0, 99_000, 20_000), "target": rng.integers(0, 4, 20_000)})
        self.metadata["subject"] = "s1"

    def __len__(self) -> int:
        return len(self.metadata)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row = self.metadata.iloc[index]
        return self.signal[:, row["start"] : row["start"] + 256], int(row["target"])


model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2048, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
for _ in range(20):
    for signals, targets in DataLoader(Windows(), batch_size=64, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(signals), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
