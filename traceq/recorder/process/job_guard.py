"""End of all processes of a job; a program that ends them once the process that named the job on stdin has ended.

`job_guard.py FOLDER FOLDERS` removes all folders behind that. It imports nothing of the package.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

_TERM_WITHIN_S, _KILL_WITHIN_S = 10, 5


def running_processes(jobs: set[int], folder: bytes) -> set[int]:
    """Return the pids of a job that still run: those of all processes that have the folder on their PYTHONPATH.

    What a job starts inherits its environment, also what outlives its parent or leads a session. Where the system has
    no /proc, only the job's own processes, `jobs`, are known.
    """
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


def end_job(jobs: set[int], folder: bytes) -> None:
    """Send SIGTERM to all processes of the job, and SIGKILL to those that still run after 10 s."""
    _end(jobs, folder, signal.SIGTERM, _TERM_WITHIN_S)
    _end(jobs, folder, signal.SIGKILL, _KILL_WITHIN_S)


def _end(jobs: set[int], folder: bytes, number: int, within_s: float) -> None:
    """Send each process of the job the signal once, until none runs or the time is over."""
    deadline = time.monotonic() + within_s
    signalled: set[int] = set()
    while (pids := running_processes(jobs, folder)) and time.monotonic() < deadline:
        for pid in pids - signalled:
            with suppress(OSError):
                os.kill(pid, number)
        signalled |= pids
        time.sleep(0.1)


if __name__ == "__main__":
    end_job({int(word) for word in sys.stdin.read().split()}, os.fsencode(sys.argv[1]))
    for _path in sys.argv[1:]:
        shutil.rmtree(_path, ignore_errors=True)
