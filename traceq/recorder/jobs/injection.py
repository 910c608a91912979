"""A command with the recorder injected into its Python processes: what is to be recorded, the folder, and the command.

The launcher writes the request beside the injected module, and every process of the job reads it.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from traceq.errors import UsageFault
from traceq.locations import Most, read_whole
from traceq.model import Arm, Fact
from traceq.recorder.process.child_processes import guarded_job
from traceq.recorder.process.environment_variables import KINETO_IS_QUIET
from traceq.recorder.process.job_guard import end_job, running_processes
from traceq.recorder.spec.parameters import as_arm, check_arm, split_assignment
from traceq.recorder.spec.plan import DEFAULT_HANG_S

DEFAULT_GRACE_S = 30.0
MODERATE = Fact("loss", "loss, mean over recorded steps")
"""What is noted of the arms of every job, besides their time."""

Improves = Literal["", "survey", "trial", "together"]
"""Part of `traceq improve`: the job as it is, toggles that are tried unasked, or all that gain as one arm."""


class ToggleRequest(msgspec.Struct, frozen=True):
    """`--toggle NAME=A,B`: a dotted path or `@built_in`, and the values of the arms as they were typed."""

    name: str
    values: tuple[str, ...]


class JobRequest(msgspec.Struct, frozen=True):
    """Options of `traceq record -- COMMAND`; `steps` None is the default of the device.

    `stops`: the job ends when the recording is complete, within `grace_s` seconds. `is_dry`: nothing is recorded, the
    job ends once it is known what could be; `of_loader`: its loader alone; `is_watched`: every step is timed, until the
    job ends. If arms have processes of their own, this one runs `arm`, and is the `process`-th of all. `watch`: the
    folder through which the launcher watches the ranks of its own host, for progress within `hang_s`. `command` as it
    was typed.
    """

    out: str
    run_id: str
    seed: int
    started: str
    toggles: tuple[ToggleRequest, ...] = ()
    steps: int | None = None
    max_minutes: float = 0.0
    trace_steps: int = 3
    stops: bool = True
    grace_s: float = DEFAULT_GRACE_S
    improves: Improves = ""
    is_dry: bool = False
    of_loader: bool = False
    is_watched: bool = False
    arm: Arm | None = None
    process: int = -1
    replicates: int = 0
    hang_s: float = DEFAULT_HANG_S
    watch: str = ""
    command: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write the request for the processes of the job."""
        path.write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(path: Path) -> JobRequest:
        """Return the request that the launcher wrote."""
        return msgspec.json.decode(read_whole(path, Most.STATUS), type=JobRequest)


class JobArm(msgspec.Struct, frozen=True):
    """An arm of a job: the number of its value for each toggle."""

    arm: Arm
    values: tuple[int, ...]


def parse_toggle(text: str) -> ToggleRequest:
    """Return the toggle of `--toggle NAME=A,B`; UsageFault for fewer than two values."""
    if "=" not in text:
        raise UsageFault(f"--toggle {text}: expected NAME=A,B")
    name, joined = split_assignment(text, "--toggle")
    values = tuple(value.strip() for value in joined.split(","))
    if len(values) < 2 or not all(values):
        raise UsageFault(f"--toggle {text}: expected at least two values, NAME=A,B")
    if "." not in name and not name.startswith("@"):
        raise UsageFault(
            f"--toggle {text}: expected a path such as main.{name}, model.{name} or package.module.{name}, or a "
            f"built-in toggle such as @{name}"
        )
    return ToggleRequest(name, values)


def job_arms(toggles: Sequence[ToggleRequest], *, together: bool = False) -> tuple[JobArm, ...]:
    """Return the arms: all first values, which is the baseline, then each other value of each toggle alone.

    With `together`, one other arm has all last values.
    """
    if not toggles:
        return (JobArm(Arm("run", "the job as it is", baseline=True), ()),)
    arms: list[JobArm] = []
    for values in _settings(toggles, together=together):
        changed = [number for number, value in enumerate(values) if value] or range(len(toggles))
        settings = [(toggles[number].name, toggles[number].values[values[number]]) for number in changed]
        changes = [(name, value) for name, value in settings if value != "default"]
        name = ",".join(f"{name.lstrip('@').rpartition('.')[2]}={value}" for name, value in changes) or "as_is"
        name = _unique(as_arm(name), [each.arm.name for each in arms])
        check_arm(name)
        meaning = ", ".join(f"{name} = {value}" for name, value in changes) or "the job as it is"
        arms.append(JobArm(Arm(name, meaning, baseline=not arms, varied=dict(settings)), values))
    return tuple(arms)


def _settings(toggles: Sequence[ToggleRequest], *, together: bool) -> Iterator[tuple[int, ...]]:
    yield (0,) * len(toggles)
    if together:
        yield tuple(len(toggle.values) - 1 for toggle in toggles)
        return
    for number, toggle in enumerate(toggles):
        for value in range(1, len(toggle.values)):
            yield tuple(value if each == number else 0 for each in range(len(toggles)))


def _unique(name: str, taken: Sequence[str]) -> str:
    """Return the name, or one with a number: two equal values show what the same job differs from itself."""
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique


DRY_RUN = "dry run"

_REQUEST, _MODULE = "job.json", "sitecustomize.py"


class Note(StrEnum):
    """What launcher and processes of a job tell each other, each a file; of each what comes first counts."""

    ATTACHED = "attached"  # a process has loaded the recorder
    ELSEWHERE = "elsewhere"  # the run of another launcher that the ranks of this one are recorded into
    ERROR = "error"  # an exception that no one caught; peers and launchers follow it
    INTERRUPTED = "interrupted"  # the launcher, by Ctrl-C
    LOAD_ERROR = "load_error"  # by the module that is injected, which imports nothing of the package before
    REASON = "reason"  # why nothing is recorded
    STOPPED = "stopped"  # a process is told to end


@dataclass(frozen=True, slots=True)
class Injection:
    """The folder, as launcher and processes of the job use it; on other nodes they find it by the same path."""

    folder: Path

    @staticmethod
    def of_run(out: str | Path) -> Injection:
        """Return the folder of a run that is being recorded."""
        return Injection(Path(out) / ".inject")

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
        self.note(Note.ATTACHED)
        return JobRequest.read(self.folder / _REQUEST)

    def note(self, note: Note, text: str = "") -> None:
        """Note something now, unless it was noted before."""
        with suppress(OSError), (self.folder / note).open("x", encoding="utf-8") as file:
            file.write(text)

    def noted(self, note: Note) -> str:
        """Return the text of a note; else ""."""
        with suppress(OSError):
            return read_whole(self.folder / note, Most.STATUS).decode(errors="replace")
        return ""

    def noted_at_s(self, note: Note) -> float | None:
        """Return when it was noted, s since the epoch; None if it was not."""
        with suppress(OSError):
            return (self.folder / note).stat().st_mtime
        return None

    @property
    def is_attached(self) -> bool:
        """True once a process of the job has loaded the recorder."""
        return self.noted_at_s(Note.ATTACHED) is not None

    @property
    def load_error(self) -> str:
        """That a process of the job, which imported torch, could not load the recorder, and why; else ""."""
        text = self.noted(Note.LOAD_ERROR).partition("\n")[2]
        return f"the job's Python cannot load the recorder: {text}" if text else ""

    @property
    def unloaded_pid(self) -> int:
        """The process of the job that could not load the recorder, the first of them; 0 without one."""
        return int(self.noted(Note.LOAD_ERROR).partition("\n")[0] or 0)


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
    without: Collection[str] = (),
    grace_s: float,
    if_unloaded: str = "",
) -> int:
    """Return the exit code of the command, 128 + the number of a signal; signals to this process reach it.

    `look` returns lines to print, and is called every half second while it runs.
    It has this process's terminal and environment, `without` some of its variables and with more. If this process is
    killed, the job is ended, and its `folders` are removed. A job that ends with its recording has `grace_s` seconds
    for that and leaves no process behind; its code is 0, as what it makes of an interrupt is no failure. With a message
    `if_unloaded` it is also ended if the command is a Python that cannot load the recorder, and starts no process: it
    would train to its end for nothing.
    """
    kept = {name: value for name, value in os.environ.items() if name not in without}
    environment = {**kept, **(variables or {}), **injection.variables}
    with (
        _forwarded_signals(lambda: injection.note(Note.INTERRUPTED)) as forward_to,
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
            if (
                stopped_at_s := injection.noted_at_s(Note.STOPPED)
            ) and time.time() > stopped_at_s + grace_s + _LEAVE_WITHIN_S:
                on_message(f"traceq: the job has not ended within {grace_s:g} s (--grace): its processes are killed")
                end_job({job.pid}, folder)
                grace_s = math.inf  # once: the system may take a while to free what they hold
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
        if injection.noted_at_s(Note.STOPPED) is None or injection.noted_at_s(Note.INTERRUPTED) is not None:
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
