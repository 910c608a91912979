"""Start a job unedited, with the recorder injected into its Python processes, and say how its recording ended."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import cast

from traceq.errors import TraceqError, UsageFault
from traceq.long_runs.block_tree import Store
from traceq.long_runs.dynolog import USE_DAEMON, DynologWatch
from traceq.long_runs.run_watch import RunWatch
from traceq.long_runs.status import serve_metrics
from traceq.long_runs.watch_folder import WatchFolder
from traceq.recorder.failures.external_launcher import cause_by_ranks
from traceq.recorder.failures.hang_watch import HangWatch, forget_hang
from traceq.recorder.failures.rank_errors import raised_line
from traceq.recorder.failures.run_status import mark_ended, mark_exit, mark_interrupted, read_hang
from traceq.recorder.jobs.injection import (
    DEFAULT_GRACE_S,
    DRY_RUN,
    Improves,
    Injection,
    JobRequest,
    Note,
    ToggleRequest,
    job_arms,
    parse_toggle,
    run_injected,
)
from traceq.recorder.spec.catalogue import recipe_names
from traceq.recorder.spec.plan import DEFAULT_HANG_S
from traceq.recorder.spec.prepare import (
    MAX_STEPS,
    MAX_TRACE_STEPS,
    check_installed,
    check_range,
    check_seconds,
    create_run_folder,
    utc_now,
)
from traceq.recorder.toggles.toggle import check_toggles
from traceq.runs.run_folder import RunFolder

_STORE_WITHIN_S = 10.0
REMOVED = "the run folder was removed while the job ran"
INTERRUPTED = {130: KeyboardInterrupt(), 143: SystemExit(143)}
"""What ends a launcher of several jobs, by the exit code of one that was ended by SIGINT or SIGTERM."""
_UNKNOWN_STEPS = (
    ": it takes eight with a backward pass; of a loop without one, as of torch.func, traceq.record in it marks them"
)
_ENDED = "traceq: the job is ended, as nothing is recorded (--then continue: it trains on)"
SCRIPT_ENDINGS = (".py", ".sh")
OUTPUT_OPTION = re.compile(r"^-.*(out|save|ckpt|checkpoint|log)", re.IGNORECASE)
"""Options of a job that name what it writes."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of `traceq record -- COMMAND`; `max_minutes` > 0 times until the verdict, and ignores `steps`.

    `is_watched`: those of `traceq watch`, which serves metrics on a port, 0 for any.
    """

    command: tuple[str, ...]
    toggles: tuple[str, ...] = ()
    steps: int | None = None
    max_minutes: float = 0.0
    trace_steps: int = 3
    stops: bool = True
    grace_s: float = DEFAULT_GRACE_S
    improves: Improves = ""
    is_dry: bool = False
    of_loader: bool = False
    is_watched: bool = False
    metrics_port: int | None = None
    out: Path | None = None
    hang_s: float = DEFAULT_HANG_S
    overwrite: bool = False

    def check(self) -> None:
        """Raise UsageFault for options that no job could have, TraceqError without the packages of the recorder."""
        check_range("--steps", self.steps, 0, MAX_STEPS)
        check_range("--trace-steps", self.trace_steps, 0, MAX_TRACE_STEPS)
        if self.steps == 0 and self.trace_steps == 0:
            raise UsageFault("--steps 0 and --trace-steps 0: nothing would be recorded")
        if self.max_minutes and self.steps is not None:
            raise UsageFault(
                f"--steps {self.steps}: --until decided determines the number of steps; use one of the two"
            )
        if self.of_loader and (self.toggles or self.is_dry or self.max_minutes):
            raise UsageFault("--recipe dataloader: a job's loader alone has no arms: without --toggle, --until")
        if self.max_minutes and not self.toggles:
            raise UsageFault("--until decided: there is only one arm; --toggle NAME=A,B adds one to compare")
        check_seconds("--hang-after", self.hang_s)
        check_seconds("--grace", self.grace_s)
        program = shutil.which(self.command[0])
        if program is None:
            raise UsageFault(f"{self.command[0]}: no such command{_hint(self.command[0])}")
        is_of_this_python = Path(program).absolute().parent == Path(sys.executable).parent
        if is_of_this_python:  # another one may have what this one lacks
            check_installed("torch")

    @property
    def script(self) -> str:
        """Name of the script in the command, without its folder and ending; else that of the program."""
        scripts = [word for word in self.command if word.endswith(SCRIPT_ENDINGS)]
        return Path(scripts[0] if scripts else self.command[0]).stem


@dataclass(frozen=True, slots=True)
class JobResult:
    """How the job ended: its exit code (128 + the number of a signal), and why its recording is not complete, or "".

    `is_elsewhere`: the run in `folder` is that of another node's launcher, which says how it ended.
    """

    exit_code: int
    folder: RunFolder
    fault: str
    is_elsewhere: bool = False


def launch_job(options: JobOptions, on_message: Callable[[str], None]) -> JobResult:
    """Run the command to its end and return how it ended.

    Its output, its signals and its exit code are its own. Raises what `JobOptions.check` does.
    """
    toggles = tuple(parse_toggle(text) for text in options.toggles)
    check_toggles({toggle.name: toggle.values for toggle in toggles})
    job_arms(toggles)
    options.check()
    out = create_run_folder(options.out, options.script, overwrite=options.overwrite).absolute()
    folder, steps = RunFolder(out), RunWatch(WatchFolder(out), open_store)
    injection = Injection.of_run(out)
    asks_daemon = options.is_watched and USE_DAEMON in os.environ
    daemon = DynologWatch(lambda: WatchFolder(Path(injection.noted(Note.ELSEWHERE) or out))) if asks_daemon else None
    on_message(_announcement(options, out))
    if daemon is not None:
        on_message(f"traceq: dyno gputrace traces steps of this job into its folder; it runs without {USE_DAEMON}")
    if options.metrics_port is not None:
        on_message(f"traceq: metrics: http://127.0.0.1:{serve_metrics(out, options.metrics_port)}/metrics")
    for named in output_folders(options.command):
        on_message(f"traceq: note: the job names {named}, which is not empty: it may overwrite what is there")
    without = {USE_DAEMON} if asks_daemon else ()  # else a trace of Kineto's and a capture end each other
    try:
        with tempfile.TemporaryDirectory(prefix="traceq-") as watched:
            injection.write(_request(options, toggles, out, watched))
            hang = HangWatch(Path(watched), folder, options.hang_s)
            ends = options.stops or options.is_dry
            exit_code = run_injected(
                options.command,
                injection,
                on_message,
                lambda: [*hang.look(), *steps.look(), *(daemon.look() if daemon is not None else ())],
                folders=[watched],
                without=without,
                grace_s=options.grace_s,
                if_unloaded=_ENDED if ends else "",
            )
        for line in steps.read():
            on_message(line)
        elsewhere = injection.noted(Note.ELSEWHERE)
        if elsewhere:
            return JobResult(exit_code, RunFolder(Path(elsewhere)), "", is_elsewhere=True)
        if WatchFolder(out).is_watched:
            return JobResult(exit_code, folder, "")
        return JobResult(exit_code, folder, _fault(folder, exit_code, injection))
    finally:
        if daemon is not None:
            daemon.close()
        steps.close()
        shutil.rmtree(injection.folder, ignore_errors=True)
        (out / ".claim").unlink(missing_ok=True)
        is_run = folder.manifest_path.exists() or WatchFolder(out).is_watched
        if options.is_dry or not is_run:  # nothing was recorded, and it was empty before
            shutil.rmtree(out, ignore_errors=True)
            if options.out is None:
                with suppress(OSError):  # it holds other runs
                    out.parent.rmdir()


def open_store(address: str) -> Store:
    """Return what launchers exchange in the store where the job's ranks meet. Raises what torch does, and OSError."""
    host, _, port = address.rpartition(":")
    if not port:
        raise TraceqError("the ranks meet in no TCPStore")
    socket.create_connection((host, int(port)), _STORE_WITHIN_S).close()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # else it prints frames of C++ once the store is gone
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    timeout = timedelta(seconds=_STORE_WITHIN_S)
    store = TCPStore(host, int(port), None, False, timeout, wait_for_workers=False)
    return cast(Store, PrefixStore("traceq/watch", store))


def _hint(name: str) -> str:
    """Return what was meant by a command that cannot be started: a recipe, or a script without its interpreter."""
    if name in recipe_names():
        return f"; the recipe is recorded by --recipe {name}"
    return f"; a script needs its interpreter: -- python {name} ..." if name.endswith(".py") else ""


def _announcement(options: JobOptions, out: Path) -> str:
    if options.is_dry:
        return "traceq: this job stops after its first steps; nothing is recorded"
    if options.is_watched:
        return (
            f"traceq: watching this job, into {_shown(out)}; from another terminal: traceq watch --status {_shown(out)}"
        )
    or_not = "" if options.improves else " (--then continue: it trains on)"
    stops = f"it stops when that is complete, as by Ctrl-C{or_not}"
    ends = stops if options.stops else "then it trains on"
    return f"traceq: recording this job into {_shown(out)}; {ends}"


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def output_folders(command: Sequence[str]) -> list[str]:
    """Return the folders that are not empty and that options of the command name for output: --out_dir, --ckpt=..."""
    words = [part for word in command for part in word.split("=", 1)]
    return [
        value
        for option, value in pairwise(words)
        if OUTPUT_OPTION.match(option) and Path(value).is_dir() and any(Path(value).iterdir())
    ]


def _request(options: JobOptions, toggles: tuple[ToggleRequest, ...], out: Path, watched: str) -> JobRequest:
    seed = secrets.randbelow(2**31)
    return JobRequest(
        out=str(out),
        run_id=f"{out.name}-{seed:08x}",
        seed=seed,
        started=utc_now(),
        toggles=toggles,
        steps=options.steps,
        max_minutes=options.max_minutes,
        trace_steps=options.trace_steps,
        stops=options.stops or options.is_dry,
        grace_s=options.grace_s,
        improves=options.improves,
        is_dry=options.is_dry,
        of_loader=options.of_loader,
        is_watched=options.is_watched,
        hang_s=options.hang_s,
        watch=watched,
        command=options.command,
    )


def _fault(folder: RunFolder, exit_code: int, injection: Injection) -> str:
    """Return why the recording is not complete; "" if it is. Marks one that was ended from outside."""
    if folder.manifest_path.is_file():
        cause = cause_by_ranks(folder, folder.read_manifest().num_ranks)
        status = "interrupted" if exit_code in INTERRUPTED or "ended by SIG" in cause else "failed"
        mark_ended(folder, status, cause or f"the job ended with exit code {exit_code}")
        if (at_s := injection.noted_at_s(Note.INTERRUPTED)) is not None:
            mark_interrupted(folder, at_s)
        if exit_code:
            mark_exit(folder, exit_code)
        manifest = folder.read_manifest()
        if manifest.status == "complete":
            forget_hang(folder)
        how = "was interrupted" if manifest.status == "interrupted" else manifest.status
        return "" if manifest.status == "complete" else f"the recording {how}: {manifest.fault}"
    if injection.noted(Note.REASON) == DRY_RUN:
        return ""
    if not injection.folder.is_dir():
        return REMOVED
    if injection.is_attached:
        error = raised_line(injection.noted(Note.ERROR)) if exit_code else ""
        why = f": {error}" if error else "" if exit_code else _UNKNOWN_STEPS
        early = f"the job ended with exit code {exit_code} before its steps were known{why}"
        return "; ".join(
            filter(None, (f"nothing was recorded: {injection.noted(Note.REASON) or early}", read_hang(folder)))
        )
    if error := injection.load_error:
        return f"nothing was recorded: {error}"
    if exit_code:
        return f"nothing was recorded: the command ended with exit code {exit_code} before a training step ran"
    return (
        "nothing was recorded: no process of the job loaded traceq; it imported no torch, its Python ignores "
        "PYTHONPATH (-E, -I, -S), or another sitecustomize comes first"
    )
