"""One rank as a process of its own: `python -m traceq.recorder.worker PLAN`, started by `launch`."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

from traceq.recorder.experiment import run_rank
from traceq.recorder.process.processes import die_with_parent
from traceq.recorder.process.progress_counters import Pulse
from traceq.recorder.process.rank_errors import tell_fault
from traceq.recorder.process.stalled import dump_flight_recorder, wait_for_flights
from traceq.recorder.process.world import join_world, leave_world
from traceq.recorder.spec.catalogue import find_recipe
from traceq.recorder.spec.plan import Plan

__all__ = ["main"]


def main() -> None:
    """Record one rank. Whatever it prints goes to its log; a fault is written where the launcher finds it."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # die at once: the launcher tells the story, no traceback here
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # how the launcher asks where a rank hangs
    plan = Plan.from_bytes(Path(sys.argv[1]).read_bytes())
    rank = int(os.environ["RANK"])
    try:
        run_rank(plan, find_recipe(plan.recipe), join_world(plan.device))
    except SystemExit as left:
        fault = RuntimeError(f"the recipe left with sys.exit({left.code})")
        tell_fault(plan.faults, rank, fault)
        raise fault from left
    except BaseException as fault:
        tell_fault(plan.faults, rank, fault)
        if dump_flight_recorder(plan.folder, rank, fault):
            wait_for_flights(plan.folder, plan.num_ranks)
        raise
    Pulse(plan.pulse, rank).finish()
    leave_world()


if __name__ == "__main__":
    main()
