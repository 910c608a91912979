"""Watch of a user's loop: `traceq.watch`, without a launcher."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from traceq.errors import UsageFault
from traceq.long_runs.watch_folder import FORMAT, WatchedJob, WatchFolder
from traceq.recorder.failures.rank_errors import error_text, reserve_descriptors
from traceq.recorder.process.environment_variables import KINETO_IS_QUIET, number_in
from traceq.recorder.process.progress_counters import ProgressCounters, append_message
from traceq.recorder.process.world import World, device_of_program, world_of_job
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan, PlannedArm
from traceq.recorder.spec.prepare import resolve_device, utc_now
from traceq.recorder.user_loop import LoopArms, StepSource, shared_folder
from traceq.recorder.watched_steps import WATCHED, WatchedSteps

_WATCHER = "traceq.long_runs.run_watch"
_WATCHER_ENDS_WITHIN_S = 10


@dataclass(frozen=True, slots=True)
class WatchedLoop(StepSource):
    """Source of batches and phases for a loop whose steps are watched, to the end of the block of `watch`."""

    rank: Rank
    watched: WatchedSteps
    arms: LoopArms
    open_steps: ExitStack

    def exclude_step(self) -> None:
        """Let the step that runs not count: it evaluates, or saves a checkpoint, which others do not."""
        self.arms.exclude_step()

    def recorded_steps(self) -> Generator[str, None, None]:
        """Yield before each step, without end but for a fault of the watch, of which the loop knows nothing."""
        return self.open_steps.enter_context(closing(self._steps()))

    def _steps(self) -> Generator[str, None, None]:
        while True:
            yield WATCHED.name
            try:
                self.watched.end_step()
            except Exception as error:  # noqa: BLE001 (a full disk, say, and the loop goes on)
                append_message(
                    "", f"traceq: rank {self.rank.world.rank}: no more steps are watched: {error_text(error)}"
                )
                return


@contextmanager
def watch(out: str | Path | None = None, *, device: str = "auto", overwrite: bool = False) -> Iterator[WatchedLoop]:
    """Watch the loop in the block for as long as it runs: `for batch in run.steps(loader)`, `with run.phase(name)`.

    As `traceq watch -- COMMAND`, for a loop that says itself where steps and phases begin: every step of every rank is
    timed; stderr says when steps became slower, on which rank and of what kind; some steps are traced then. Phases
    named `forward`, `backward` and `optimizer` are kept step by step. `out`, `device` and `overwrite` are those of
    `traceq.record`. Every rank has to run it, after its process group began: UsageFault if there is none yet.
    """
    if number_in("WORLD_SIZE", 1) > 1 and not dist.is_initialized():
        raise UsageFault("traceq.watch: ranks meet by their process group; call init_process_group first")
    world = world_of_job(device_of_program(resolve_device(device)))
    path = shared_folder(world, Path(out) if out else None, WATCHED.name, overwrite=overwrite, function="watch")
    hosts, pids = zip(*world.gather((socket.gethostname(), os.getpid())), strict=True)
    plan = _plan(world, path)
    rank = Rank(plan, world, Phases(), ProgressCounters())
    reserve_descriptors()
    os.environ.setdefault("KINETO_LOG_LEVEL", KINETO_IS_QUIET)  # read by the first profiler of a process
    with ExitStack() as watching:
        if world.rank == 0:
            WatchFolder(plan.folder.path).write_job(
                WatchedJob(FORMAT, hosts, "of this loop", plan.started, tuple(sys.argv), pids)
            )
            rank.say(f"traceq: watching this loop, into {path}; traceq watch --status {path}")
            watching.enter_context(_watcher(path))
        arms = LoopArms((WATCHED.name,), WATCHED.name)
        watched = watching.enter_context(closing(WatchedSteps(rank, arms.was_regular)))
        with ExitStack() as open_steps:
            yield WatchedLoop(rank, watched, arms, open_steps)


def _plan(world: World, path: str) -> Plan:
    return Plan(
        run_id=f"{Path(path).name}-{world.share(secrets.randbelow(2**31)):08x}",
        out=path,
        device=world.device.type,
        num_ranks=world.size,
        steps=0,
        trace_steps=0,
        seed=0,
        arms=(PlannedArm(WATCHED),),
        reseeds=False,
        started=world.share(utc_now()),
    )


@contextmanager
def _watcher(path: str) -> Iterator[None]:
    """Let a process of its own read what ranks write, and say what began; it ends with this one."""
    process = subprocess.Popen([sys.executable, "-m", _WATCHER, str(os.getpid()), path], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_WATCHER_ENDS_WITHIN_S)
        process.kill()
