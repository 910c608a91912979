"""This process's place among the ranks: joined from the environment, whoever launched it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from traceq.errors import TraceqError

__all__ = ["World", "find_world", "join_world", "leave_world"]

T = TypeVar("T")
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
        """gloo or nccl; none without a process group."""
        return str(dist.get_backend()) if dist.is_initialized() else "none"

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if dist.is_initialized():
            dist.barrier()

    def share(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        return self.gather(value)[0]

    def gather(self, mine: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""
        if not dist.is_initialized():
            return [mine]
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        return ranks


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


def find_world(device: str) -> World:
    """The world of a running program: its process group, or one rank. Starting a group is that program's to do."""
    place = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")
    if dist.is_initialized():
        return World(dist.get_rank(), int(os.environ.get("LOCAL_RANK", "0")), dist.get_world_size(), place)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TraceqError(
            "record: found WORLD_SIZE but no process group; init_process_group or Accelerator() goes first"
        )
    return World(0, 0, 1, place)


def leave_world() -> None:
    """Tear the process group down; nothing when there is none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _start(place: torch.device) -> None:
    backend = "nccl" if place.type == "cuda" else "gloo"
    alone: dict[str, Any] = {} if "RANK" in os.environ else {"store": HashStore(), "rank": 0, "world_size": 1}
    device_id = place if place.type == "cuda" else None
    dist.init_process_group(backend, timeout=TIMEOUT, device_id=device_id, **alone)
