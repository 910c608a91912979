"""Process of one rank: `python -m traceq.recorder.rank_process PLAN`, started by `launch`."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

from traceq.locations import Most, read_whole
from traceq.recorder.failures.cpp_terminate import TerminateHandler
from traceq.recorder.failures.external_launcher import note_abort
from traceq.recorder.failures.hang_diagnosis import dump_flight_recorder, wait_for_dumps
from traceq.recorder.failures.rank_errors import reserve_descriptors, write_error
from traceq.recorder.process.child_processes import die_with_parent
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.world import join_world, leave_world
from traceq.recorder.rank_recording import run_rank
from traceq.recorder.spec.catalogue import find_recipe
from traceq.recorder.spec.plan import Plan

__all__ = ["main"]


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


if __name__ == "__main__":
    main()
