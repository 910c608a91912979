"""Rank, world size and device of this process, from the environment that its launcher set."""

from __future__ import annotations

import base64
import gc
import os
import pickle
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from traceq.errors import PeerLeft, RecordingFailed, TraceqError
from traceq.recorder.process.child_processes import is_alive
from traceq.recorder.process.environment_variables import adopt_srun, number_in, rank_of_environment

_VISIBLE_WITHIN_S = 10.0  # network file systems propagate new folders with a delay

T = TypeVar("T")
TIMEOUT = timedelta(seconds=90)  # the default of 30 minutes hides a hang
_STEP_TIMEOUT = timedelta(minutes=10)  # an evaluation of one rank may take as long
_PRESENT_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Host and process of one rank."""

    host: str
    pid: int

    @property
    def has_exited(self) -> bool:
        """True if its process runs on this host and has ended; False for processes of other hosts."""
        return self.host == socket.gethostname() and not is_alive(self.pid)


@dataclass(frozen=True, slots=True)
class _Departure:
    """Value of a rank that takes part no longer."""

    reason: str


@dataclass(frozen=True, slots=True)
class World:
    """Rank, number of ranks, the device of this rank, and where all ranks run (`peers`, by rank).

    Ranks communicate by `exchange`, or without one by collectives of the default process group.
    """

    rank: int
    local_rank: int
    size: int
    device: torch.device
    peers: tuple[Peer, ...] = ()
    exchange: StoreExchange | None = None

    @property
    def backend(self) -> str:
        """Backend of the process group, gloo or nccl; "none" without a group."""
        return str(dist.get_backend()) if dist.is_initialized() else "none"

    @property
    def shares_device(self) -> bool:
        """True for ranks of which some compute on the same GPU, so that they communicate by gloo."""
        return self.device.type == "cuda" and self.backend == "gloo"

    def barrier(self) -> None:
        """Wait until every rank has reached this point. Raises PeerLeft if one has left."""
        self.gather(None)  # a collective that is a barrier knows of no departure, and NCCL's may choose another GPU

    def share(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        return self.gather(value)[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank, on every rank. Raises PeerLeft if one has left."""
        if self.exchange is not None:
            return self.exchange.gather(value)
        if not dist.is_initialized():
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        on_gpu = self.device.type == "cuda"  # NCCL takes the current one, which may be that of another rank
        with torch.cuda.device(self.device) if on_gpu else nullcontext():
            dist.all_gather_object(values, value)
        if left := [f"rank {rank}: {each.reason}" for rank, each in enumerate(values) if isinstance(each, _Departure)]:
            raise PeerLeft(left[0])
        return values

    def leave(self, reason: str) -> None:
        """Tell the other ranks that this one takes part no longer, and why: their next gather raises it.

        Without an exchange it is a gather itself: each rank has to come to one before its next step.
        """
        if self.exchange is not None:
            self.exchange.leave(reason)
        elif self.size > 1:
            with suppress(PeerLeft):
                self.gather(_Departure(reason))


def join_world(device: str) -> World:
    """Join the process group of `RANK` and `WORLD_SIZE`, or start it; without these variables, a world of one rank.

    `device`: cpu or cuda. Ranks that outnumber the GPUs share them and communicate by gloo.
    """
    local_rank = number_in("LOCAL_RANK", 0)
    rank_device = torch.device("cpu")
    if device == "cuda":
        rank_device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(rank_device)
    if not dist.is_initialized():
        _init_process_group(rank_device)
    return _world_of_group(local_rank, rank_device)


@contextmanager
def running_world(device: str) -> Iterator[World]:
    """Yield the world of a running program: its process group, or a single rank.

    `device`: cpu, cuda:N, or cuda for the one on which it holds memory, else the current one. Several ranks without a
    process group get one for the duration of the block.
    """
    rank_device = device_of_program(device)
    if not dist.is_initialized():
        adopt_srun()
    local_rank = number_in("LOCAL_RANK", 0)
    if dist.is_initialized():
        yield _world_of_group(local_rank, rank_device)
    elif number_in("WORLD_SIZE", 1) > 1:
        with _temporary_group(rank_device):
            yield _world_of_group(local_rank, rank_device)
    else:
        yield World(0, 0, 1, rank_device, (_this_peer(),))


def device_of_program(device: str) -> torch.device:
    """Return the device of cpu, cuda:N, or cuda: the one on which the program holds memory, else the current one."""
    if device == "cuda":
        return device_with_memory() or torch.device("cuda", torch.cuda.current_device())
    return torch.device(device)


def world_of_job(device: torch.device) -> World:
    """Return the world of a job that knows nothing of its recording: its ranks exchange values by its store.

    Raises RecordingFailed if ranks of the job do not take part.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return World(0, 0, 1, device, (_this_peer(),))
    rank, size = dist.get_rank(), dist.get_world_size()
    store = PrefixStore("traceq", dist.distributed_c10d._get_default_store())
    exchange = StoreExchange(store, rank, size, _STEP_TIMEOUT)
    exchange.announce()
    if absent := exchange.absent_ranks(_PRESENT_WITHIN_S):
        reason = (
            f"{size - len(absent)} of {size} ranks take part; missing: {', '.join(map(str, absent))}: their Python "
            "ignores PYTHONPATH (-E, -I), they train nothing, or begin their steps elsewhere in the loop"
        )
        exchange.leave(reason)
        raise RecordingFailed(reason)
    world = World(rank, int(os.environ.get("LOCAL_RANK", rank)), size, device, exchange=exchange)
    return replace(world, peers=tuple(world.gather(_this_peer())))


def store_address() -> str:
    """Return host and port of the store where the job's ranks meet; "" if that is no server."""
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return f"{store.host}:{store.port}" if isinstance(store, TCPStore) else ""


def leave_world() -> None:
    """Destroy the process group, if there is one.

    Its threads end with the last reference to it, which a wrapped model may hold. One that outlives the interpreter can
    abort the process: a finished allreduce of DDP's backward is freed there, which needs the interpreter's lock.
    """
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def _world_of_group(local_rank: int, device: torch.device) -> World:
    world = World(dist.get_rank(), local_rank, dist.get_world_size(), device)
    return replace(world, peers=tuple(world.gather(_this_peer())))


def _this_peer() -> Peer:
    return Peer(socket.gethostname(), os.getpid())


@contextmanager
def _temporary_group(device: torch.device) -> Iterator[None]:
    """Start a process group and destroy it when the block ends.

    The recorder's own communication uses gloo even where the loop's tensors use nccl: ranks that were started without
    a group may all compute on the same GPU, which nccl rejects.
    """
    store, rank, size = meet()
    on_gpu = device.type == "cuda" and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, store=store, rank=rank, world_size=size)
    group = dist.group.WORLD
    try:
        yield
    finally:
        if dist.group.WORLD is group:
            leave_world()


def _init_process_group(device: torch.device) -> None:
    is_alone = "RANK" not in os.environ or number_in("WORLD_SIZE", 1) == 1
    store: Store
    store, rank, size = (HashStore(), 0, 1) if is_alone else meet()
    uses_nccl = device.type == "cuda" and _has_gpus_alone(store, rank, size, device)
    backend: dict[str, Any] = {"backend": "nccl", "device_id": device} if uses_nccl else {"backend": "gloo"}
    dist.init_process_group(timeout=TIMEOUT, store=store, rank=rank, world_size=size, **backend)


def _has_gpus_alone(store: Store, rank: int, size: int, device: torch.device) -> bool:
    """Return whether each rank has a GPU to itself, as nccl needs it; a launcher may show each rank another cuda:0."""
    numbered = f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')} {device}"
    gpu = getattr(torch.cuda.get_device_properties(device), "uuid", numbered)  # which torch 2.4 does not know
    store.set(f"traceq/gpu/{rank}", f"{socket.gethostname()} {gpu}")
    return len({store.get(f"traceq/gpu/{each}") for each in range(size)}) == size


_POLL_S = 0.001


class StoreExchange:
    """Gathers values of ranks that are at the same point of their loops; call its methods in the same order on all."""

    __slots__ = ("_num_gathered", "_rank", "_size", "_store", "_timeout_s")

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._timeout_s = timeout.total_seconds()
        self._num_gathered = 0

    def announce(self) -> None:
        """Tell the other ranks that this one takes part."""
        self._store.set(f"present/{self._rank}", "")

    def absent_ranks(self, within_s: float) -> list[int]:
        """Return the ranks that have not announced themselves, after at most that long."""
        deadline = time.monotonic() + within_s
        while absent := [rank for rank in range(self._size) if not self._store.check([f"present/{rank}"])]:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        return absent

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank.

        Raises PeerLeft if a rank has left, RecordingFailed if one does not come in time.
        """
        prefix = f"gather/{self._num_gathered}"
        self._num_gathered += 1
        self._store.set(f"{prefix}/{self._rank}", base64.b64encode(pickle.dumps(value)).decode())
        deadline = time.monotonic() + self._timeout_s
        for rank in range(self._size):
            while not self._store.check([f"{prefix}/{rank}"]):
                self._check_present(rank, f"{prefix}/{rank}", deadline)
                time.sleep(_POLL_S)
        if self._num_gathered > 1:  # all ranks are here, so all have read the values before these
            with suppress(RuntimeError):
                self._store.delete_key(f"gather/{self._num_gathered - 2}/{self._rank}")
        return [pickle.loads(base64.b64decode(self._store.get(f"{prefix}/{rank}"))) for rank in range(self._size)]

    def accept(self, question: str) -> None:
        """Tell the other ranks that this one knows of a question, and will ask `all_accept`."""
        self._store.set(f"{question}/{self._rank}", "")

    def all_accept(self, question: str) -> bool:
        """Return whether all ranks had accepted when the first of them asked; without a wait, and the same on each."""
        answer = "yes" if self._store.check([f"{question}/{rank}" for rank in range(self._size)]) else "no"
        return bool(self._store.compare_set(question, "", answer) == b"yes")

    def leave(self, reason: str) -> None:
        """Tell the other ranks that this one takes part no longer, and why."""
        self._store.set(f"left/{self._rank}", reason)

    def wait_until_left(self, within_s: float) -> None:
        """Wait until all other ranks have left, at most that long."""
        others = [f"left/{rank}" for rank in range(self._size) if rank != self._rank]
        deadline = time.monotonic() + within_s
        while not self._store.check(others) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _check_present(self, rank: int, key: str, deadline: float) -> None:
        """Raise if the rank has left without that value, which it may set just before, or the time is over."""
        if self._store.check([f"left/{rank}"]) and not self._store.check([key]):
            raise PeerLeft(f"rank {rank}: {self._store.get(f'left/{rank}').decode()}")
        if time.monotonic() >= deadline:
            raise RecordingFailed(f"rank {rank} did not reach this point of its loop within {self._timeout_s:.0f} s")


_NOTE_AFTER_S = 5.0
_RENDEZVOUS_POLL_S = 0.05
_VARIABLES = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
_LEFT_OVER = f"if these variables are left over from another job: unset {_VARIABLES}"


def meet() -> tuple[Store, int, int]:
    """Return the store, this rank, and their number, by the variables that the launcher set.

    Writes to stderr what it waits for, if that takes longer than 5 s. Raises TraceqError for variables that cannot be,
    and where not all ranks come in time. torch waits in C++, which hears no signal, so it does that on a thread.
    """
    rank, size = rank_of_environment()
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    stores: list[Store] = []

    def wait_for_ranks() -> None:
        with suppress(RuntimeError, ValueError, OSError):  # torch's own errors are RuntimeErrors
            store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
            store.set_timeout(TIMEOUT)
            stores.append(PrefixStore("default_pg", store))

    attempt = Thread(target=wait_for_ranks, daemon=True)
    attempt.start()
    start = time.monotonic()
    was_noted = False
    while attempt.is_alive():
        attempt.join(_RENDEZVOUS_POLL_S)
        if not was_noted and time.monotonic() - start > _NOTE_AFTER_S:
            was_noted = True
            others = "rank 0" if rank else f"the other {size - 1} ranks" if size > 2 else "rank 1"
            sys.stderr.write(f"traceq: rank {rank} of {size} waits for {others} at {place}; {_LEFT_OVER}\n")
    if not stores:
        waited = f"after {time.monotonic() - start:.0f} s"
        raise TraceqError(f"rank {rank} of {size}: not all ranks came to {place} {waited}; {_LEFT_OVER}")
    return stores[0], rank, size


def check_shared(folder: Path, world: World) -> None:
    """Raise TraceqError on every rank unless all ranks see the folder that rank 0 created."""
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    while not folder.is_dir() and time.monotonic() < deadline:
        time.sleep(0.05)
    blind = [rank for rank, sees in enumerate(world.gather(folder.is_dir())) if not sees]
    if blind:
        rank, host = blind[0], world.peers[blind[0]].host
        raise TraceqError(
            f"{folder}: rank {rank} on {host} cannot see this folder, which rank 0 created on {world.peers[0].host}; "
            "all ranks need a shared file system, and the same working directory or an absolute path"
        )


def device_with_memory() -> torch.device | None:
    """Return the CUDA device on which this process holds memory, of several the current one, else that with most."""
    held: dict[int, int] = {}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # an allocator that keeps no account
            held = {index: torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count())}
    if not any(held.values()):
        return None
    current = torch.cuda.current_device()
    return torch.device("cuda", current if held[current] else max(held, key=lambda index: held[index]))


def other_accelerator() -> str:
    """Return mps or xpu if this process holds memory there, else ""."""
    if torch.backends.mps.is_available() and torch.mps.current_allocated_memory():
        return "mps"
    reserved = getattr(torch.xpu, "memory_reserved", int)  # torch 2.4 has no such function
    return "xpu" if torch.xpu.is_available() and reserved() else ""


def host_note(kind: str) -> str:
    """Return what times of the host do not tell of steps on a device that is no CUDA device."""
    return (
        f"the models are on {kind}: steps are timed on the host, which does not wait for that device; an arm has its "
        "own time only where each step waits, as for loss.item()"
    )
