"""Program that ends a job once the process that named its pid on stdin has ended: `job_guard.py FOLDER FOLDERS`.

Every process that has the first folder on its PYTHONPATH is ended, as what a job starts inherits its environment, also
what outlives its parent or leads a session; where the system has no /proc, only the job's own process. Then all folders
are removed.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

__all__ = ()

_TERM_WITHIN_S, _KILL_WITHIN_S = 10, 5


def _running(jobs: set[int], folder: bytes) -> set[int]:
    """Return the pids of the job that still run."""
    has_proc = os.path.isdir("/proc/self")
    pids = set()
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()] if has_proc else jobs:
        with suppress(OSError):
            if not has_proc:
                os.kill(pid, 0)
            if not has_proc or folder in _python_path(pid):
                pids.add(pid)
    return pids


def _python_path(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        paths = [each for each in file.read().split(b"\0") if each.startswith(b"PYTHONPATH=")]
    return [path for each in paths for path in each.partition(b"=")[2].split(os.pathsep.encode())]


def _end(jobs: set[int], folder: bytes, number: int, within_s: float) -> None:
    """Send each process of the job the signal once, until none runs or the time is over."""
    deadline = time.monotonic() + within_s
    signalled: set[int] = set()
    while (pids := _running(jobs, folder)) and time.monotonic() < deadline:
        for pid in pids - signalled:
            with suppress(OSError):
                os.kill(pid, number)
        signalled |= pids
        time.sleep(0.1)


if __name__ == "__main__":
    _jobs, _folder = {int(word) for word in sys.stdin.read().split()}, os.fsencode(sys.argv[1])
    _end(_jobs, _folder, signal.SIGTERM, _TERM_WITHIN_S)
    _end(_jobs, _folder, signal.SIGKILL, _KILL_WITHIN_S)
    for _path in sys.argv[1:]:
        shutil.rmtree(_path, ignore_errors=True)
