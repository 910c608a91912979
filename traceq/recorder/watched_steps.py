"""One rank of a job that is watched: every step is timed and written, and a few are traced when the launcher asks.

A step costs a row in a list. Once a second rows are written, and the request to trace is looked for, between two steps.
Ranks agree on the steps to trace by their number and through the job's store: none waits for one that may not come.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns, thread_time_ns

import numpy as np
import torch

from traceq.errors import TraceqError
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.long_runs.limits import EVERY_S, TIMED_STEPS
from traceq.long_runs.step_store import CAPTURED, REGULAR, STEP, RowWriter
from traceq.long_runs.watch_folder import FORMAT, CaptureRequest, WatchedJob, WatchFolder, WatchNode
from traceq.model import Arm
from traceq.recorder.job_rank import claims, common_request, plan_of_job
from traceq.recorder.jobs.injection import JobArm, JobRequest
from traceq.recorder.jobs.job_facts import found_text, job_facts, world_on_devices
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.progress_counters import ProgressCounters, append_message
from traceq.recorder.process.world import World, store_address
from traceq.recorder.rank.rank_state import LoopControl, Rank
from traceq.recorder.rank_recording import recorded_steps
from traceq.recorder.spec.phases import Phases
from traceq.recorder.timing.clocks import is_throttled, read_clocks
from traceq.recorder.timing.stopwatch import GcPauses
from traceq.recorder.toggles.toggle import Job

_STEPS_PER_READING = 16
_READ_NS = 10**8
_TASKS = "/proc/self/task"
_THREAD, _CORE = "/proc/thread-self/stat", 36  # field 39, of which the first two are cut off
_CORE_KHZ = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
_PHASES = (DATALOAD_WAIT, "forward", "backward", "optimizer")
WATCHED = Arm("run", "the job as it is", baseline=True)


def start_watching(request: JobRequest, job: Job, tracker: StepTracker) -> WatchedSteps | None:
    """Return this rank of a watched job, once all ranks of it have come; None in any but the first that has no group.

    Raises TraceqError on every rank if ranks do not come, or do not share the folder.
    """
    assert tracker.pattern is not None
    launcher, world = request.out, world_on_devices(job)
    request = common_request(request, world)
    if world.size == 1 and not claims(Path(request.out)):
        return None
    _note_node(launcher, request.out, world)
    hosts, pids = zip(*world.gather((socket.gethostname(), os.getpid())), strict=True)
    is_regular = all(world.gather(tracker.pattern.is_regular))
    plan = replace(plan_of_job(request, (JobArm(WATCHED, ()),), world), is_regular=is_regular)
    rank = Rank(plan, world, Phases(), ProgressCounters())
    rank.facts.update(job_facts(job, tracker))
    rank.say(f"traceq: {found_text(job, tracker, world)}")
    if world.rank == 0:
        watched = WatchedJob(FORMAT, hosts, tracker.pattern.text, request.started, request.command, pids)
        WatchFolder(Path(request.out)).write_job(watched)
    tracker.say = rank.say
    return WatchedSteps(rank, tracker.was_regular)


def _note_node(launcher: str, run: str, world: World) -> None:
    """Tell this node's launcher, of several, which ranks it has; before it can know that the run is watched."""
    launchers = world.gather(launcher)
    ranks = tuple(rank for rank, out in enumerate(launchers) if out == launcher)
    nodes = sorted(set(launchers))  # the run is in the folder of the first
    if len(nodes) > 1 and world.rank == ranks[0]:
        WatchFolder(Path(launcher)).write_node(
            WatchNode(nodes.index(launcher), len(nodes), ranks, run, store_address())
        )


class WatchedSteps:
    """The steps of this rank from now on; `phases` are to be those of the loop.

    `was_regular` returns whether the step that just ended did what every step does.
    """

    def __init__(self, rank: Rank, was_regular: Callable[[], bool]) -> None:
        self.phases = rank.phases
        self._rank, self._was_regular = rank, was_regular
        self._folder = WatchFolder(Path(rank.plan.out))
        self._writer = RowWriter(self._folder.steps, rank.world.rank)
        self._readings = _Readings(rank.world.device)
        self._collector = GcPauses()
        self._collector.start()
        self._elapsed_ns = self.phases.elapsed_ns
        self._num_ended = self._read_step = self._read_ns = 0  # steps, and when the queue was read last
        self._marks: list[tuple[int, ...]] = []  # ends of steps since the last row that was written, and its own
        self._memory: list[tuple[int, float]] = []  # index of the row, and what was read behind that step
        self._queued: list[tuple[int, float]] = []
        self._clock: list[tuple[int, float]] = []
        self._throttled: list[tuple[int, float]] = []
        self._asked_ns = 0  # when the request to trace was written that is known
        self._capture: CaptureRequest | None = None
        self._first_traced = -1
        self._traced: Generator[str, None, None] | None = None
        self._is_regular = False
        self._restart()

    def end_step(self) -> None:
        """Note the end of a step: the loop begins the next one."""
        elapsed_ns, now_ns = self._elapsed_ns, perf_counter_ns()
        self._is_regular = self._was_regular()
        flags = REGULAR * self._is_regular if self._traced is None else CAPTURED
        self._marks.append(
            (now_ns, thread_time_ns(), self._collector.collected_ns, *[elapsed_ns[name] for name in _PHASES], flags)
        )
        self._num_ended += 1
        if not self._num_ended % _STEPS_PER_READING:
            self._memory.append((len(self._marks) - 2, self._readings.memory()))
            if now_ns >= self._read_ns + _READ_NS:
                self._read_queue(now_ns)
        if now_ns >= self._due_ns:
            self._read_clock()
            self.flush()
            self._look_for_request()
            self._restart()
        if self._traced is not None or self._num_ended == self._first_traced:
            self._advance_capture()

    def _read_queue(self, now_ns: int) -> None:
        """Note how long threads waited in each step since the last reading."""
        num_steps, self._read_step, self._read_ns = self._num_ended - self._read_step, self._num_ended, now_ns
        self._queued.append((len(self._marks) - 2, self._readings.queued_s() / num_steps))

    def _read_clock(self) -> None:
        """Note the clock of the device; not in a step, as the driver may take its time."""
        hz, is_throttled = self._readings.clock()
        self._clock.append((len(self._marks) - 2, hz))
        self._throttled.append((len(self._marks) - 2, is_throttled))

    def flush(self) -> None:
        """Write the steps since the last call."""
        if len(self._marks) < 2:
            return
        marks = np.array(self._marks, np.int64)
        rows = np.zeros(len(marks) - 1, STEP)
        rows["time"] = time.time() - (perf_counter_ns() - marks[1:, 0]) * 1e-9
        rows["step"] = np.arange(self._num_ended - len(rows), self._num_ended)
        rows["flags"] = marks[1:, -1]
        seconds = np.diff(marks[:, :-1], axis=0) * 1e-9
        for column, name in enumerate(("wall", "cpu", "gc", "loader", "forward", "backward", "optimizer")):
            rows[name] = seconds[:, column]
        for name, readings in (
            ("queued", self._queued),
            ("memory", self._memory),
            ("clock", self._clock),
            ("throttled", self._throttled),
        ):
            rows[name] = np.nan
            for index, value in readings:
                rows[name][index] = value
            readings.clear()
        self._writer.append(rows)

    def close(self) -> None:
        """Write what is left, and let no rank wait for this one."""
        with suppress(Exception):
            self.flush()
        with suppress(Exception):
            self._writer.close()
        self._collector.stop()
        self._end_capture("its loop has ended")
        self._readings.close()

    def _restart(self) -> None:
        """Begin a step now: what was done since the last one ended is no part of any."""
        elapsed_ns, now_ns = self._elapsed_ns, perf_counter_ns()
        self._readings.find_threads()
        self._read_step, self._read_ns = self._num_ended, now_ns
        self._marks[:] = [
            (now_ns, thread_time_ns(), self._collector.collected_ns, *[elapsed_ns[name] for name in _PHASES], 0)
        ]
        self._due_ns = now_ns + round(EVERY_S * 1e9)

    def _look_for_request(self) -> None:
        """Accept a new request to trace that begins at a later step."""
        try:
            asked_ns = os.stat(self._folder.capture_path).st_mtime_ns
        except OSError:
            return
        if asked_ns == self._asked_ns or self._traced is not None:
            return
        self._asked_ns, self._capture = asked_ns, self._folder.read_capture()
        if self._capture.first_step > self._num_ended:
            self._first_traced = self._capture.first_step
            if self._rank.world.exchange is not None:
                self._rank.world.exchange.accept(f"capture/{self._capture.name}/{self._first_traced}")

    def _advance_capture(self) -> None:
        """Trace the step that begins, if all ranks do; a fault, also of another rank, ends nothing but captures."""
        self.flush()
        try:
            if self._traced is None:
                self._begin_capture()
            if self._traced is not None and next(self._traced, None) is None:
                self._traced = None
        except Exception as error:  # noqa: BLE001 (whatever a profiler raises, the job trains on, and is watched)
            text = str(error) if isinstance(error, TraceqError) else f"{type(error).__name__}: {error}"
            append_message("", f"traceq: rank {self._rank.world.rank}: no more steps are traced: {text}")
            self._end_capture(text)
        self._restart()

    def _begin_capture(self) -> None:
        request, world = self._capture, self._rank.world
        assert request is not None
        question = f"capture/{request.name}/{self._first_traced}"
        if world.exchange is not None and not world.exchange.all_accept(question):
            return
        plan = replace(
            self._rank.plan,
            out=str(self._folder.captured(request.name).path),
            run_id=f"{self._rank.plan.run_id}-{request.name}",
            started=request.started,
            steps=TIMED_STEPS,
            trace_steps=request.num_steps,
        )
        control = LoopControl(was_regular=lambda: self._is_regular)
        rank = replace(self._rank, plan=plan, facts=self._rank.facts.copy(), control=control)
        self._traced = recorded_steps(rank, plan.manifest("", ""))

    def _end_capture(self, reason: str) -> None:
        """Trace no more: the other ranks would wait for this one."""
        if self._traced is not None:
            with suppress(Exception):
                self._traced.close()
        with suppress(Exception):
            self._rank.world.leave(reason)
        self._traced, self._first_traced = None, -1
        self._asked_ns = -1


class _Readings:
    """Memory of this process, how long its threads wait for cores, and clocks; NaN where the system does not say."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._statm = _opened("/proc/self/statm")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
        self._threads: dict[str, int] = {}
        self._queued_ns = 0

    def memory(self) -> float:
        """Return resident bytes."""
        return float("nan") if self._statm is None else float(_words(self._statm)[1]) * self._page_bytes

    def queued_s(self) -> float:
        """Return the seconds that threads have waited for a core since the last call, all together."""
        before_ns, self._queued_ns = self._queued_ns, self._all_queued_ns()
        return (self._queued_ns - before_ns) * 1e-9 if self._threads else float("nan")

    def clock(self) -> tuple[float, float]:
        """Return the clock of the GPU, Hz, and 1.0 if that is throttled; else that of the core this thread is on."""
        for line in read_clocks(self._device):
            return line.sm_mhz * 1e6, float(is_throttled(line))
        if self._device.type == "cpu":
            with suppress(OSError, ValueError):  # "<unknown>", of some drivers
                core = int(Path(_THREAD).read_bytes().rpartition(b")")[2].split()[_CORE])
                return int(Path(_CORE_KHZ.format(core)).read_bytes()) * 1e3, float("nan")
        return float("nan"), float("nan")

    def find_threads(self) -> None:
        """Read those threads from here on that exist now."""
        names = set(os.listdir(_TASKS)) if os.path.isdir(_TASKS) else set()
        for name in self._threads.keys() - names:
            os.close(self._threads.pop(name))
        for name in names - self._threads.keys():
            if (opened := _opened(f"{_TASKS}/{name}/schedstat")) is not None:
                self._threads[name] = opened
        self._queued_ns = self._all_queued_ns()

    def _all_queued_ns(self) -> int:
        total_ns = 0
        for descriptor in self._threads.values():
            with suppress(OSError):  # the thread has ended
                total_ns += int(_words(descriptor)[1])
        return total_ns

    def close(self) -> None:
        """Close what the readings are from."""
        for descriptor in (*self._threads.values(), *([] if self._statm is None else [self._statm])):
            os.close(descriptor)


def _words(descriptor: int) -> list[bytes]:
    return os.pread(descriptor, 64, 0).split()


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None
