"""Which device and which backend a rank gets."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
import torch.distributed as dist

from traceq.recorder.process.world import join_world

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("num_devices", "ranks_here", "local_rank", "device", "backend", "shares"),
    [(2, 2, 1, "cuda:1", "nccl", False), (1, 2, 1, "cuda:0", "gloo", True), (2, 5, 4, "cuda:0", "gloo", True)],
)
def test_ranks_that_outnumber_the_gpus_share_them_and_use_gloo(
    monkeypatch: pytest.MonkeyPatch,
    num_devices: int,
    ranks_here: int,
    local_rank: int,
    device: str,
    backend: str,
    shares: bool,
) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda **options: started.update(options))
    monkeypatch.setattr(dist, "get_rank", lambda: local_rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks_here)
    for key, value in {"RANK": local_rank, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": ranks_here}.items():
        monkeypatch.setenv(key, str(value))

    world = join_world("cuda")
    assert (world.rank, world.local_rank, world.size) == (local_rank, local_rank, ranks_here)
    assert (world.device, started["backend"], world.shares_device) == (torch.device(device), backend, shares)
    assert ("device_id" in started) is (backend == "nccl")
