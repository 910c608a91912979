"""Processes that end with the one that started them, and so do the processes that they start."""

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

__all__ = ["die_with_parent", "end", "running", "wait_for_end"]

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1
_GONE_S = 30


def die_with_parent(*_: object) -> None:
    """Ask the kernel to kill this process when its parent is gone, even by SIGKILL. Only Linux can; else nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def running(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], logs: Sequence[Path]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One process for each environment, which is added to this one's; none is left when the block ends.

    Each leads a process group, so that a Ctrl-C in a terminal reaches only who started them, and what they start ends
    with them. What they print is appended to their log.
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
            end(process)


def wait_for_end(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until one of the processes has ended, so long at most."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and all(process.poll() is None for process in processes):
        time.sleep(_POLL_S)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what is left of its group. One that a driver holds is left to the kernel."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_S)
