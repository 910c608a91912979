"""Process that watches the ranks of its host: `python -m traceq...watcher_process RANK_PID FOLDER RUN SECONDS`.

Started by `watched_loop`. It ends with the rank that started it, also by SIGKILL, and then removes the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from traceq.recorder.failures.hang_watch import HangWatch
from traceq.runs.run_folder import RunFolder

__all__ = ["main"]

_POLL_S = 0.5


def main() -> None:
    """Print on stderr where the ranks stand, whenever they have made no progress for long."""
    rank_pid, ranks, run, hang_s = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = HangWatch(Path(ranks), RunFolder(Path(run)), float(hang_s))
    while os.getppid() == int(rank_pid):  # named, as it may have ended before this line
        for line in watch.look():
            sys.stderr.write(f"{line}\n")
        time.sleep(_POLL_S)
    shutil.rmtree(ranks, ignore_errors=True)


if __name__ == "__main__":
    main()
