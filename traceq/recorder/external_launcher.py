"""Ranks that someone else started: torchrun, accelerate launch or SLURM. They record one run together."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from traceq.errors import RecordingFailed, TraceqError
from traceq.recorder.experiment import run_rank
from traceq.recorder.external_end import note_end
from traceq.recorder.process.rank_errors import error_text
from traceq.recorder.process.root_cause import is_of_a_peer
from traceq.recorder.process.shared_folder import check_shared
from traceq.recorder.process.signals import Stopped, stoppable
from traceq.recorder.process.world import World, join_world, leave_world
from traceq.recorder.spec.catalogue import find_recipe
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.prepare import Request, prepare, resolve_device

__all__ = ["record_joined"]


def record_joined(request: Request) -> Plan | None:
    """Record this rank's part; the plan on rank 0 and None on the others. All ranks call it.

    RecordingFailed on a rank that lost its peers says which of them failed, if that can be told.
    """
    with stoppable() as ignore_signals:
        try:
            world = join_world(resolve_device(request.device))
            plan = _agree(request, world)
            _record(plan, world, ignore_signals)
        except Stopped as stopped:
            raise stopped.as_exit from None
    leave_world()
    return plan if world.rank == 0 else None


def _record(plan: Plan, world: World, ignore_signals: Callable[[], None]) -> None:
    try:
        try:
            run_rank(plan, find_recipe(plan.recipe), world)
        except BaseException:
            ignore_signals()
            raise
    except BaseException as fault:  # a signal may have come between
        text = note_end(plan, world, fault)
        if not isinstance(fault, Stopped) and is_of_a_peer(error_text(fault)):
            raise RecordingFailed(f"{plan.out}: {text}") from fault
        raise


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
    plan = Plan.from_bytes(message[0])
    check_shared(plan.folder.path, world)
    return plan
