"""Child processes that are killed, with their own children, when the process that started them ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["die_with_parent", "kill_group", "running_processes", "wait_for_any_exit"]

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1
_KILL_TIMEOUT_S = 30


def die_with_parent(*_: object) -> None:
    """Ask the kernel to kill this process when its parent ends, even by SIGKILL.

    Only Linux supports that; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def running_processes(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], logs: Sequence[Path]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start one process per environment, which extends this process's, and kill all of them when the block ends.

    Each process leads a process group: Ctrl-C in a terminal reaches only the parent, and the children of a process are
    killed with it. Stdout and stderr are appended to its log.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for environment, log in zip(environments, logs, strict=True):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as file:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=file,
                        env={**os.environ, **environment},
                        process_group=0,
                    )
                )
        yield processes
    finally:
        for process in processes:
            kill_group(process)


def wait_for_any_exit(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until one of the processes has exited, at most that long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        time.sleep(_POLL_S)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and the rest of its group; a process that a driver blocks is left to the kernel."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_TIMEOUT_S)
