"""Metrics of a step for the log: fetched one by one, as trainers do, or summed on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor

__all__ = ["MetricSums", "gather_means"]


def gather_means(accelerator: Accelerator, values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return each value's mean over all ranks, with one gather and one `.item()`, which blocks the host, per value."""
    return {name: accelerator.gather_for_metrics(value).mean().item() for name, value in values.items()}


@dataclass(slots=True)
class MetricSums:
    """Sums of values that stay on the device until `fetch`."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    num_steps: int = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add one step's values; the host is not blocked."""
        self.num_steps += 1
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def fetch(self, accelerator: Accelerator) -> dict[str, float]:
        """Return means over all ranks and over the steps since the last fetch, with one gather and one sync in all."""
        names, stacked = list(self.sums), torch.stack(list(self.sums.values()))
        means = accelerator.gather(stacked).view(-1, len(names)).mean(dim=0) / self.num_steps
        self.sums, self.num_steps = {}, 0
        return dict(zip(names, means.tolist(), strict=True))
