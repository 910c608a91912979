"""Which device and which backend a rank gets."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from traceq.recorder.process import world as world_module
from traceq.recorder.process.world import join_world

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("gpus", "other", "local_rank", "device", "backend"),
    [
        (("A", "B"), "A", 1, "cuda:1", "nccl"),
        (("A",), "A", 1, "cuda:0", "gloo"),
        (("A", "B"), "A", 4, "cuda:0", "gloo"),
        (("B",), "A", 1, "cuda:0", "nccl"),  # the launcher shows each rank one GPU
    ],
)
def test_ranks_that_share_a_gpu_use_gloo(
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[str, ...],
    other: str,
    local_rank: int,
    device: str,
    backend: str,
) -> None:
    """By what the GPUs are, as each rank sees others under the same numbers; `other` is that of rank 0."""
    started: dict[str, Any] = {}
    store = HashStore()
    store.set("traceq/gpu/0", f"{socket.gethostname()} {other}")
    monkeypatch.setattr(world_module, "meet", lambda: (store, 1, 2))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=gpus[torch.device(device).index])
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda **options: started.update(options))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for key, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": local_rank}.items():
        monkeypatch.setenv(key, str(value))

    world = join_world("cuda")
    assert (world.rank, world.local_rank, world.size) == (1, local_rank, 2)
    assert (world.device, started["backend"]) == (torch.device(device), backend)
    assert ("device_id" in started) is (backend == "nccl")
