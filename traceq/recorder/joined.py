"""Ranks that someone else started: torchrun, accelerate launch or SLURM. They record one run together."""

from __future__ import annotations

import torch.distributed as dist

from traceq.errors import RecordingFailed, TraceqError
from traceq.recorder.blame import Failure
from traceq.recorder.catalogue import find
from traceq.recorder.ending import mark, status_after
from traceq.recorder.experiment import run_rank
from traceq.recorder.plan import Plan
from traceq.recorder.prepare import Request, prepare, resolve_device
from traceq.recorder.world import World, join_world, leave_world

__all__ = ["record_joined"]


def record_joined(request: Request) -> Plan | None:
    """Record this rank's part; the plan on rank 0 and None on the others. All ranks call it."""
    world = join_world(resolve_device(request.device))
    plan = _agree(request, world)
    try:
        run_rank(plan, find(plan.recipe), world)
    except BaseException as fault:
        _mark_own(plan, world, fault)
        raise
    leave_world()
    return plan if world.rank == 0 else None


def _agree(request: Request, world: World) -> Plan:
    """Rank 0's plan, or its fault, on every rank: none is left waiting."""
    message: list[bytes | str] = [""]
    if world.rank == 0:
        try:
            message = [prepare(request, world.size)[0].to_bytes()]
        except TraceqError as fault:
            dist.broadcast_object_list([str(fault)], src=0)
            raise
    dist.broadcast_object_list(message, src=0)
    if isinstance(message[0], str):
        raise RecordingFailed(f"rank 0: {message[0]}")
    return Plan.from_bytes(message[0])


def _mark_own(plan: Plan, world: World, fault: BaseException) -> None:
    """A rank that only lost its peers leaves it to them to say why the run ended, but for rank 0."""
    text = f"{type(fault).__name__}: {fault}"
    if world.rank == 0 or not Failure(world.rank, 1, text).is_secondary:
        mark(plan.folder, status_after(fault), f"rank {world.rank}: {text}")
