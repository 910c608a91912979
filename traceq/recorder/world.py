"""This process's place among the ranks: joined from the environment, whoever launched it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from traceq.errors import TraceqError

__all__ = ["World", "join_world", "leave_world"]

TIMEOUT = timedelta(seconds=90)  # the default of 30 minutes hides a hang


@dataclass(frozen=True, slots=True)
class World:
    """Rank, number of ranks, and the device this rank computes on."""

    rank: int
    local_rank: int
    size: int
    device: torch.device

    @property
    def backend(self) -> str:
        """gloo or nccl."""
        return str(dist.get_backend())


def join_world(device: str) -> World:
    """Start (or adopt) the process group of `RANK` and `WORLD_SIZE`; alone, a world of one. `device`: cpu or cuda."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cpu")
    if device == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise TraceqError(f"local rank {local_rank}: found {torch.cuda.device_count()} GPUs; expected one a rank")
        place = torch.device("cuda", local_rank)
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        _start(place)
    return World(dist.get_rank(), local_rank, dist.get_world_size(), place)


def leave_world() -> None:
    """Tear the process group down; nothing when there is none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _start(place: torch.device) -> None:
    backend = "nccl" if place.type == "cuda" else "gloo"
    options = {"device_id": place} if place.type == "cuda" else {}
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=TIMEOUT, **options)
    else:
        dist.init_process_group(backend, timeout=TIMEOUT, store=dist.HashStore(), rank=0, world_size=1, **options)
