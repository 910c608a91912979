"""One rank as a process of its own: `python -m traceq.recorder.worker PLAN`, started by `launch`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from traceq.recorder.catalogue import find
from traceq.recorder.experiment import run_rank
from traceq.recorder.plan import Plan
from traceq.recorder.processes import die_with_parent
from traceq.recorder.stalled import leave_flight
from traceq.recorder.world import join_world, leave_world

__all__ = ["main"]


@record
def main() -> None:
    """Record one rank. Whatever it prints goes to its log; a fault is written where the launcher finds it."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # die at once: the launcher tells the story, no traceback here
    plan = Plan.from_bytes(Path(sys.argv[1]).read_bytes())
    _write_to(plan.folder.log(int(os.environ["RANK"])))
    world = join_world(plan.device)
    try:
        run_rank(plan, find(plan.recipe), world)
    except SystemExit as left:
        raise RuntimeError(f"the recipe left with sys.exit({left.code})") from left
    except BaseException as fault:
        leave_flight(plan.folder, world, fault)
        raise
    leave_world()


def _write_to(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


if __name__ == "__main__":
    main()
