"""Child processes that are killed, with their own children, when the process that started them ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["die_with_parent", "kill_group", "running_processes", "signal_main_thread"]

_PR_SET_PDEATHSIG = 1
_GUARD = """
import os, shutil, signal, sys
groups = sys.stdin.read().split()
for group in groups:
    try:
        os.killpg(int(group), signal.SIGKILL)
    except OSError:
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
"""Program that kills process groups and removes a folder once the process that named them on its stdin has ended."""
_KILL_TIMEOUT_S = 30


def die_with_parent(*_: object) -> None:
    """Ask the kernel to kill this process when its parent ends, even by SIGKILL.

    Only Linux supports that; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def running_processes(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], logs: Sequence[Path], scratch: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start one process per environment, which extends this process's, and kill all of them when the block ends.

    Each process leads a process group: Ctrl-C in a terminal reaches only the parent, and the children of a process are
    killed with it. Stdout and stderr are appended to its log. If this process is killed, so are they, with their own
    children, and the folder `scratch` is removed.
    """
    processes: list[subprocess.Popen[bytes]] = []
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, scratch],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
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
            guard.stdin.write(b"%d\n" % processes[-1].pid)
            guard.stdin.flush()
        yield processes
    finally:
        for process in processes:
            kill_group(process)
        guard.kill()
        guard.communicate()


def signal_main_thread(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the main thread, where the system can: any other thread of a stopped process might take it."""
    if process.poll() is None:
        try:
            ctypes.CDLL(None).tgkill(process.pid, process.pid, number)
        except AttributeError:  # not Linux, or a C library of before 2019
            process.send_signal(number)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and the rest of its group; a process that a driver blocks is left to the kernel."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_TIMEOUT_S)
