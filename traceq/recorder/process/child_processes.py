"""Child processes that end, with their own children, when the one that started them does; what /proc says of one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

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
_JOB_GUARD = Path(__file__).with_name("job_guard.py")


def daemonic_children() -> list[int]:
    """Return the processes that this one started by multiprocessing as daemons, as data loaders do."""
    return [child.pid for child in multiprocessing.active_children() if child.daemon and child.pid is not None]


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
    guard = _start_guard("-c", _GUARD, scratch)
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
            _name_to(guard, processes[-1])
        yield processes
    finally:
        for process in processes:
            kill_group(process)
        guard.kill()
        guard.communicate()


@contextmanager
def guarded_job(on_path: str, folders: Sequence[str]) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yield a function that takes the process of a job, which ends if this process is killed in the block.

    Then SIGTERM is sent to all processes that have the folder `on_path` on their PYTHONPATH, and SIGKILL to those that
    still run after 10 s; all folders are removed. In all other cases the job is left to itself.
    """
    guard = _start_guard(str(_JOB_GUARD), on_path, *folders)
    try:
        yield lambda job: _name_to(guard, job)
    finally:
        guard.kill()
        guard.communicate()


def _start_guard(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _name_to(guard: subprocess.Popen[bytes], process: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    guard.stdin.write(b"%d\n" % process.pid)
    guard.stdin.flush()


def signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread, where the system can: any other thread might take it, and print its stack."""
    try:
        ctypes.CDLL(None).tgkill(pid, pid, number)
    except AttributeError:  # not Linux, or a C library of before 2019
        with suppress(OSError):
            os.kill(pid, number)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and the rest of its group; a process that a driver blocks is left to the kernel."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_TIMEOUT_S)


def state(pid: int) -> str:
    """Return R, S, D, T, t or Z: runs, sleeps, waits for a disk or a driver, was stopped, is traced, has ended.

    "" if there is no such process, or no /proc.
    """
    return next(iter(stat_fields(Path(f"/proc/{pid}/stat"))), "")


def is_alive(pid: int) -> bool:
    """Return False if there is no such process, or it has ended and its parent has not noticed."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return state(pid) != "Z"


def cpu_s(fields: list[str], *, with_children: bool = False) -> float:
    """Return the CPU time of a process so far, s, of its `stat_fields`."""
    return sum(map(int, fields[11 : 15 if with_children else 13])) / _TICKS_PER_S


def stat_fields(path: Path) -> list[str]:
    """Return the fields after the name of a process: its state, parent, group, ...; empty if it is gone."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
