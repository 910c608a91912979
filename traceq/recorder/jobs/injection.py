"""A command with the recorder injected into its Python processes, by a folder and the variables that point to it."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from traceq.locations import Most, read_whole
from traceq.recorder.jobs.job_request import JobRequest
from traceq.recorder.process.child_processes import guarded_job
from traceq.recorder.process.environment_variables import KINETO_IS_QUIET
from traceq.recorder.process.job_guard import end_job, running_processes

DRY_RUN = "dry run"

_REQUEST, _ATTACHED, _REASON, _ERROR, _ELSEWHERE = "job.json", "attached", "reason", "error", "elsewhere"
_INTERRUPTED, _STOPPED = "interrupted", "stopped"
_LOAD_ERROR = "load_error"
"""Written by the module that is injected, which imports nothing of the package before."""
_MODULE = "sitecustomize.py"
_OF_RUN = ".inject"


@dataclass(frozen=True, slots=True)
class Injection:
    """The folder, as launcher and processes of the job use it; on other nodes they find it by the same path."""

    folder: Path

    @staticmethod
    def of_run(out: str | Path) -> Injection:
        """Return the folder of a run that is being recorded."""
        return Injection(Path(out) / _OF_RUN)

    def write(self, request: JobRequest) -> None:
        """Write the module that is injected, and the request beside it."""
        self.folder.mkdir(parents=True)
        shutil.copyfile(Path(__file__).parents[1] / _MODULE, self.folder / _MODULE)
        request.write(self.folder / _REQUEST)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the job: the folder comes first on PYTHONPATH, Kineto is quiet, and wandb uploads nothing."""
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        defaults = {"KINETO_LOG_LEVEL": KINETO_IS_QUIET, "WANDB_MODE": "offline"}
        unset = {key: value for key, value in defaults.items() if key not in os.environ}
        return {"PYTHONPATH": os.pathsep.join(paths)} | unset

    def attach(self) -> JobRequest:
        """Return the request, and note that a process of the job has loaded the recorder."""
        with suppress(OSError):
            (self.folder / _ATTACHED).touch()
        return JobRequest.read(self.folder / _REQUEST)

    @property
    def is_attached(self) -> bool:
        """True once a process of the job has loaded the recorder."""
        return (self.folder / _ATTACHED).exists()

    @property
    def load_error(self) -> str:
        """That a process of the job, which imported torch, could not load the recorder, and why; else ""."""
        text = self._load_failure()[1]
        return f"the job's Python cannot load the recorder: {text}" if text else ""

    @property
    def unloaded_pid(self) -> int:
        """The process of the job that could not load the recorder, the first of them; 0 without one."""
        return int(self._load_failure()[0] or 0)

    def _load_failure(self) -> tuple[str, str]:
        pid, _, text = self._text(_LOAD_ERROR).partition("\n")
        return pid, text

    def note_interrupt(self) -> None:
        """Note that the launcher was interrupted by Ctrl-C now."""
        with suppress(OSError):
            (self.folder / _INTERRUPTED).touch()

    @property
    def interrupted_at_s(self) -> float | None:
        """When the launcher was interrupted by Ctrl-C, s since the epoch; None if it was not."""
        with suppress(OSError):
            return (self.folder / _INTERRUPTED).stat().st_mtime
        return None

    def note_stop(self) -> None:
        """Note that a process of the job is told to end now."""
        with suppress(OSError), (self.folder / _STOPPED).open("x"):
            pass

    @property
    def stopped_at_s(self) -> float | None:
        """When the first process of the job was told to end, s since the epoch; None if none was."""
        with suppress(OSError):
            return (self.folder / _STOPPED).stat().st_mtime
        return None

    def note_reason(self, text: str) -> None:
        """Note why nothing is recorded; the first reason counts."""
        with suppress(OSError), (self.folder / _REASON).open("x", encoding="utf-8") as file:
            file.write(text)

    def note_error(self, text: str) -> None:
        """Note an exception that no one caught; the first one counts, as peers and launchers follow it."""
        with suppress(OSError), (self.folder / _ERROR).open("x", encoding="utf-8") as file:
            file.write(text)

    @property
    def error(self) -> str:
        """The first exception that no one caught in a process of the job; else ""."""
        return self._text(_ERROR)

    def note_elsewhere(self, out: str) -> None:
        """Note that the ranks of this launcher are recorded into the run that another one made."""
        with suppress(OSError):
            (self.folder / _ELSEWHERE).write_text(out, encoding="utf-8")

    @property
    def elsewhere(self) -> str:
        """The run of another launcher that the ranks of this one are recorded into; else ""."""
        return self._text(_ELSEWHERE)

    @property
    def reason(self) -> str:
        """Why nothing was recorded, as far as the job knows; else ""."""
        return self._text(_REASON)

    def _text(self, name: str) -> str:
        with suppress(OSError):
            return read_whole(self.folder / name, Most.STATUS).decode(errors="replace")
        return ""


_ATTACHED_WITHIN_S = 60.0
_ALONE_FOR_S = 3.0
"""Time for which the command has started no other process, from which it is taken to be what trains."""
_POLL_S = 0.5
_LEAVE_WITHIN_S = 5.0
"""Time from the end of the grace in which processes leave by themselves."""
_LEFT_FOR_S = 1.0
"""Time for which a process of the job may outlive its command: what it watches has just ended."""


def run_injected(
    command: Sequence[str],
    injection: Injection,
    on_message: Callable[[str], None],
    look: Callable[[], list[str]],
    variables: Mapping[str, str] | None = None,
    folders: Sequence[str] = (),
    *,
    grace_s: float,
    if_unloaded: str = "",
) -> int:
    """Return the exit code of the command, 128 + the number of a signal; signals to this process reach it.

    `look` returns lines to print, and is called every half second while it runs.
    It has this process's terminal and environment, extended by `variables`. If this process is killed, the job is
    ended, and its `folders` are removed. A job that ends with its recording has `grace_s` seconds for that and leaves
    no process behind; its code is 0, as what it makes of an interrupt is no failure. With a message `if_unloaded` it is
    also ended if the command is a Python that cannot load the recorder, and starts no process: it would train to its
    end for nothing.
    """
    environment = {**os.environ, **(variables or {}), **injection.variables}
    with (
        _forwarded_signals(injection.note_interrupt) as forward_to,
        guarded_job(str(injection.folder), folders) as guard,
    ):
        job = subprocess.Popen(command, env=environment)
        forward_to(job)
        guard(job)
        folder = os.fsencode(injection.folder)
        attached_until, load = time.monotonic() + _ATTACHED_WITHIN_S, _Load(injection)
        while (code := _exit_code(job)) is None:
            for line in look():
                on_message(line)
            if (stopped_at_s := injection.stopped_at_s) and time.time() > stopped_at_s + grace_s + _LEAVE_WITHIN_S:
                on_message(f"traceq: the job has not ended within {grace_s:g} s (--grace): its processes are killed")
                end_job({job.pid}, folder)
            if if_unloaded and load.has_failed(job):
                on_message(if_unloaded)
                if_unloaded = ""
                job.terminate()
            if time.monotonic() >= attached_until:
                attached_until = math.inf
                if not injection.is_attached and not injection.load_error:
                    within = f"{_ATTACHED_WITHIN_S:.0f} s"
                    on_message(f"traceq: after {within} no Python process of the job has imported torch")
        code = 128 - code if code < 0 else code
        if injection.stopped_at_s is None or injection.interrupted_at_s is not None:
            return code
        _end_left(folder)
        if code:
            on_message(f"traceq: note: the job exited with {code} when its recording ended it")
        return 0


def _end_left(folder: bytes) -> None:
    """End the processes that a job left, if they do not end by themselves in a moment."""
    deadline = time.monotonic() + _LEFT_FOR_S
    while left := running_processes(set(), folder):
        if time.monotonic() > deadline:
            return end_job(left, folder)
        time.sleep(_LEFT_FOR_S / 20)
    return None


class _Load:
    """Watches whether the command itself, a process of Python, loads the recorder."""

    def __init__(self, injection: Injection) -> None:
        self._injection, self._since = injection, math.inf

    def has_failed(self, job: subprocess.Popen[bytes]) -> bool:
        """Return whether it could not, a while ago, and trains alone: what it started may have another Python."""
        if self._injection.unloaded_pid != job.pid or self._injection.is_attached or _num_children(job.pid) != 0:
            self._since = math.inf
            return False
        self._since = min(self._since, time.monotonic())
        return time.monotonic() - self._since >= _ALONE_FOR_S


def _num_children(pid: int) -> int:
    """Return how many processes a process has started that still run; -1 where the system does not say."""
    children = list(Path(f"/proc/{pid}/task").glob("*/children"))
    try:
        return sum(len(of_thread.read_text().split()) for of_thread in children) if children else -1
    except OSError:
        return -1


def _exit_code(job: subprocess.Popen[bytes]) -> int | None:
    try:
        return job.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return None


@contextmanager
def _forwarded_signals(on_interrupt: Callable[[], None]) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass SIGTERM and SIGHUP on to the job, and leave Ctrl-C to it: a terminal sends that to both."""
    jobs: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        for job in jobs:
            job.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: on_interrupt())
    try:
        yield jobs.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
