"""Numbers of a step for the log: fetched one by one as trainers do it, or added up where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor

__all__ = ["MetricSums", "gathered"]


def gathered(accelerator: Accelerator, values: Mapping[str, Tensor]) -> dict[str, float]:
    """Each value's mean over all ranks: a gather and an `.item()` a value, so the host waits as often."""
    return {name: accelerator.gather_for_metrics(value).mean().item() for name, value in values.items()}


@dataclass(slots=True)
class MetricSums:
    """Sums of values that stay on the device until `fetch`."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    num_steps: int = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add one step's values; the host waits for nothing."""
        self.num_steps += 1
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def fetch(self, accelerator: Accelerator) -> dict[str, float]:
        """Means over all ranks and over the steps since the last fetch: one gather and one wait for all values."""
        names, stacked = list(self.sums), torch.stack(list(self.sums.values()))
        means = accelerator.gather(stacked).view(-1, len(names)).mean(dim=0) / self.num_steps
        self.sums, self.num_steps = {}, 0
        return dict(zip(names, means.tolist(), strict=True))
