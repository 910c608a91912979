"""A policy trained with accelerate: frames as uint8, ragged prompts, clipping, a scheduler, and gathered metrics.

`python accelerate_job.py [WIDTH]`: the width of its tokens.
"""

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn


@dataclass(frozen=True)
class PolicyConfig:
    width: int = 32
    warn_outlier_threshold: float = 0.0


@dataclass
class TrainConfig:
    metrics_every: int = 1
    grad_clip: float = 1.0


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(tokens).unflatten(-1, (2, -1)).transpose(1, 2).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens + attended.transpose(1, 2).flatten(2)
        return tokens + self.mlp(tokens)


class Policy(nn.Module):
    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.frames, self.words = nn.Linear(48, config.width), nn.Embedding(100, config.width)
        self.blocks = nn.ModuleList(Block(config.width) for _ in range(4))
        self.head = nn.Linear(config.width, 7)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        tokens = torch.cat([self.frames(batch["frames"].float() / 255), self.words(batch["prompt"])], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        if self.config.warn_outlier_threshold > 0 and tokens.abs().max().item() > self.config.warn_outlier_threshold:
            warnings.warn("outlier", stacklevel=2)
        return nn.functional.mse_loss(self.head(tokens.mean(dim=1)), batch["action"])


class Episodes(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 40_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        frames = torch.full((8, 48), index % 256, dtype=torch.uint8)
        return {"frames": frames, "prompt": torch.arange(1, 4 + index % 5), "action": torch.zeros(7)}


def collate(episodes: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    padded = nn.utils.rnn.pad_sequence([episode["prompt"] for episode in episodes], batch_first=True)
    stacked = {key: torch.stack([episode[key] for episode in episodes]) for key in ("frames", "action")}
    return {"prompt": nn.functional.pad(padded, (0, 8 - padded.shape[1])), **stacked}


def train(config: TrainConfig) -> None:
    accelerator = Accelerator(cpu=True)
    policy: Any = Policy(PolicyConfig(*map(int, sys.argv[1:])))
    optimizer: Any = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    loader: Any = torch.utils.data.DataLoader(Episodes(), batch_size=4, num_workers=1, collate_fn=collate)
    scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.999**step)
    policy, optimizer, loader, scheduler = accelerator.prepare(policy, optimizer, loader, scheduler)
    for number, batch in enumerate(loader):
        loss = policy(batch)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(policy.parameters(), config.grad_clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if number % config.metrics_every == 0:
            [accelerator.gather_for_metrics(loss.detach() * scale).mean().item() for scale in range(1, 6)]


train(TrainConfig())
