"""Process of one rank: started by `launch` as `python -m traceq.recorder.rank_process PLAN`, or by another launcher."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from traceq.errors import RecordingFailed, TraceqError
from traceq.locations import Most, read_whole
from traceq.recorder.failures.external_launcher import note_abort, note_end
from traceq.recorder.failures.hang_diagnosis import dump_flight_recorder, wait_for_dumps
from traceq.recorder.failures.hang_watch import watched_loop
from traceq.recorder.failures.rank_errors import (
    TerminateHandler,
    error_text,
    is_peer_error,
    reserve_descriptors,
    write_error,
)
from traceq.recorder.process.child_processes import die_with_parent
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.signals import Stopped, stoppable
from traceq.recorder.process.world import World, check_shared, join_world, leave_world
from traceq.recorder.rank_recording import run_rank
from traceq.recorder.spec.catalogue import find_recipe
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.prepare import Request, prepare, resolve_device


def main() -> None:
    """Record one rank; its output goes to its log, its exception to a file that the launcher reads."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # die at once without a traceback: the launcher reports the reason
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # lets the launcher see where a rank hangs
    plan = Plan.from_bytes(read_whole(Path(sys.argv[1]), Most.STATUS))
    rank = int(os.environ["RANK"])
    reserve_descriptors()
    try:
        world = join_world(plan.device)
        handler = TerminateHandler(lambda: note_abort(plan, world))
        progress = ProgressCounters(plan.progress_path, rank)
        run_rank(plan, find_recipe(plan.recipe), world, progress)
        handler.restore()
    except SystemExit as exit_:
        error = RuntimeError(f"the recipe called sys.exit({exit_.code})")
        write_error(plan.faults_folder, rank, error)
        raise error from exit_
    except BaseException as error:
        write_error(plan.faults_folder, rank, error)
        if dump_flight_recorder(plan.folder, rank, error):
            wait_for_dumps(plan.folder, plan.num_ranks)
        raise
    progress.finish()
    leave_world()


def record_joined(request: Request) -> Plan | None:
    """Record this rank's part and return the plan on rank 0, None on the others; all ranks call it.

    RecordingFailed on a rank that lost its peers names the one that failed, if it is known.
    """
    with stoppable() as ignore_signals:
        try:
            reserve_descriptors()
            world = join_world(resolve_device(request.device))
            plan = _shared_plan(request, world)
            _record(plan, world, ignore_signals)
        except Stopped as stopped:
            raise stopped.as_exit from None
    leave_world()
    return plan if world.rank == 0 else None


def _record(plan: Plan, world: World, ignore_signals: Callable[[], None]) -> None:
    try:
        try:
            with watched_loop(plan, world) as progress:
                run_rank(plan, find_recipe(plan.recipe), world, progress)
        except BaseException:
            ignore_signals()
            raise
    except BaseException as error:  # a second handler: a signal may arrive before ignore_signals()
        text = note_end(plan, world, error)
        if not isinstance(error, Stopped) and is_peer_error(error_text(error)):
            raise RecordingFailed(f"{plan.out}: {text}") from error
        raise


def _shared_plan(request: Request, world: World) -> Plan:
    """Return rank 0's plan, or raise its error, on every rank, so that no rank is left waiting."""
    message: list[bytes | str] = [""]
    if world.rank == 0:
        try:
            message = [prepare(request, world.size)[0].to_bytes()]
        except TraceqError as error:
            dist.broadcast_object_list([str(error)], src=0)
            raise
    dist.broadcast_object_list(message, src=0)
    if isinstance(message[0], str):
        raise RecordingFailed(f"rank 0: {message[0]}")
    plan = Plan.from_bytes(message[0])
    check_shared(plan.folder.path, world)
    return plan


if __name__ == "__main__":
    main()
