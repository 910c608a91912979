"""This process's place among the ranks: joined from the environment, whoever launched it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from traceq.errors import TraceqError
from traceq.recorder.process.environment_variables import adopt_srun

__all__ = ["Peer", "World", "join_world", "leave_world", "running_world"]

T = TypeVar("T")
TIMEOUT = timedelta(seconds=90)  # the default of 30 minutes hides a hang


@dataclass(frozen=True, slots=True)
class Peer:
    """Where one rank runs."""

    host: str
    pid: int

    @property
    def is_gone(self) -> bool:
        """Its process has ended, as far as this host can tell."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except OSError as fault:
            return isinstance(fault, ProcessLookupError)
        return False


@dataclass(frozen=True, slots=True)
class World:
    """Rank, number of ranks, the device this rank computes on, and where all ranks run, by rank."""

    rank: int
    local_rank: int
    size: int
    device: torch.device
    peers: tuple[Peer, ...] = ()

    @property
    def backend(self) -> str:
        """Gloo or nccl; none without a process group."""
        return str(dist.get_backend()) if dist.is_initialized() else "none"

    @property
    def shares_device(self) -> bool:
        """Ranks of this host take turns on its GPUs, which are fewer."""
        return self.device.type == "cuda" and _ranks_here() > torch.cuda.device_count()

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
    """Start (or adopt) the process group of `RANK` and `WORLD_SIZE`; alone, a world of one. `device`: cpu or cuda.

    More ranks than GPUs share them, and talk by gloo.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        _start(place)
    return _met(local_rank, place)


@contextmanager
def running_world(device: str) -> Iterator[World]:
    """The world of a running program: its process group, or one rank; ranks without a group have one for the block."""
    place = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")
    if not dist.is_initialized():
        adopt_srun()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if dist.is_initialized():
        yield _met(local_rank, place)
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        with _lent_group(place):
            yield _met(local_rank, place)
    else:
        yield World(0, 0, 1, place, (_own(),))


def leave_world() -> None:
    """Tear the process group down; nothing when there is none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _met(local_rank: int, place: torch.device) -> World:
    world = World(dist.get_rank(), local_rank, dist.get_world_size(), place)
    return replace(world, peers=tuple(world.gather(_own())))


def _own() -> Peer:
    return Peer(socket.gethostname(), os.getpid())


@contextmanager
def _lent_group(place: torch.device) -> Iterator[None]:
    """A process group until the block ends.

    Its own exchange is on gloo even where tensors of the loop would go by nccl: ranks that never met may all compute
    on the same GPU, which nccl refuses.
    """
    missing = [key for key in ("RANK", "MASTER_ADDR", "MASTER_PORT") if key not in os.environ]
    if missing:
        raise TraceqError(
            f"record: found WORLD_SIZE but no process group and no {', '.join(missing)}; torchrun sets them, "
            "or init_process_group goes first"
        )
    on_gpu = place.type == "cuda" and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    lent = dist.group.WORLD
    try:
        yield
    finally:
        if dist.group.WORLD is lent:
            leave_world()


def _start(place: torch.device) -> None:
    by_nccl = place.type == "cuda" and _ranks_here() <= torch.cuda.device_count()  # nccl refuses two ranks on one GPU
    alone: dict[str, Any] = {} if "RANK" in os.environ else {"store": HashStore(), "rank": 0, "world_size": 1}
    bound: dict[str, Any] = {"backend": "nccl", "device_id": place} if by_nccl else {"backend": "gloo"}
    dist.init_process_group(timeout=TIMEOUT, **bound, **alone)


def _ranks_here() -> int:
    """How many ranks of this host see the GPUs that this one sees: srun may show each task its own."""
    if "SLURM_GPUS_PER_TASK" in os.environ:
        return 1
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
