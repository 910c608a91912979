"""Start the ranks of a plan on this machine, wait for them, and report the root cause if they fail.

How they ended is known from their exit codes, progress counters, written errors and logs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from threading import Event, Thread
from typing import Any

from torch._C._distributed_c10d import TCPStore

from traceq.errors import RecordingFailed, TraceqError
from traceq.locations import Most, open_binary
from traceq.recorder.failures.hang_diagnosis import STACK_LINES, find_desync, frames_of, innermost_user_line
from traceq.recorder.failures.rank_errors import (
    ABORTED,
    LaunchFailure,
    RankError,
    RankFailure,
    error_text,
    find_cause,
    read_error,
)
from traceq.recorder.failures.run_status import mark_ended
from traceq.recorder.isolated_arms import OnMessage, OnProgress, next_arms_of, record_isolated
from traceq.recorder.process.child_processes import (
    cpu_s,
    running_processes,
    signal_main_thread,
    stat_fields,
    state,
)
from traceq.recorder.process.environment_variables import rank_variables
from traceq.recorder.process.progress_counters import (
    STACK_HEADER,
    STACK_WITHIN_S,
    MessageReader,
    Progress,
    create_counters,
    read_counters,
)
from traceq.recorder.process.signals import Stopped, stoppable
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.recipe import Recipe

_WORKER = "traceq.recorder.rank_recording"


def launch(plan: Plan, recipe: Recipe[Any], on_progress: OnProgress, on_message: OnMessage) -> None:
    """Run every rank of the plan; RecordingFailed names the rank that failed first and why, with the end of its log.

    `on_progress(steps_ended, steps_planned)` and `on_message(line)` may be called from another thread.
    KeyboardInterrupt and SystemExit(143) are raised after the ranks have ended and the manifest is marked.
    """
    try:
        with stoppable():
            if plan.replicates:
                failure = record_isolated(plan, next_arms_of(recipe, plan), _run_ranks, on_progress, on_message)
            else:
                failure = _record_shared(plan, lambda job: _run_ranks(job, on_progress, on_message), on_message)
    except Stopped as stopped:
        mark_ended(plan.folder, "interrupted", error_text(stopped))
        raise stopped.as_exit from None
    except (OSError, TraceqError) as error:
        mark_ended(plan.folder, "failed", error_text(error))
        raise
    if failure:
        mark_ended(plan.folder, "failed", failure.fault)
        raise RecordingFailed(failure.text)


def _run_ranks(plan: Plan, on_progress: OnProgress, on_message: OnMessage) -> LaunchFailure | None:
    """Run the plan's ranks; return why they failed, unless the run is complete."""
    with tempfile.TemporaryDirectory(prefix="traceq-") as scratch:
        plan = replace(plan, scratch=scratch)
        plan_path = Path(scratch) / "plan.json"
        plan_path.write_bytes(plan.to_bytes())
        create_counters(Path(plan.progress_path), plan.num_ranks)
        logs = [plan.folder.log(rank) for rank in range(plan.num_ranks)]
        write_log_headers(logs, plan.log_header)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ranks = range(plan.num_ranks)
        command = [sys.executable, "-u", "-m", _WORKER, str(plan_path)]
        variables = [rank_variables(rank, plan.num_ranks, store.port, plan.sharing) for rank in ranks]
        try:
            with (
                running_processes(command, variables, logs, scratch) as processes,
                _reporting(plan, on_progress, on_message),
            ):
                failures = wait_for_ranks(processes, plan)
        finally:
            plan.folder.sweep()
        if isinstance(failures, LaunchFailure):
            return failures
        if failures and not plan.folder.is_complete:
            return _launch_failure(plan, failures)
        for failure in failures:
            on_message(f"traceq: note: rank {failure.rank}: {failure.text}; the run was already complete")
    return None


def _launch_failure(plan: Plan, failures: Sequence[RankFailure]) -> LaunchFailure:
    """Return the desync of ranks that waited for each other, else the root cause with the end of its log."""
    desync = find_desync(plan.folder) if all(failure.is_secondary for failure in failures) else ""
    if desync:
        return LaunchFailure(desync, f"{plan.folder.stalled(0).parent}: {desync}")
    counters = read_counters(Path(plan.progress_path))
    cause = find_cause(failures, {rank: progress.phases_entered for rank, progress in enumerate(counters)})
    fault, log = f"rank {cause.rank}: {cause.text}", plan.folder.log(cause.rank)
    return LaunchFailure(
        fault, f"{log}: {fault}\n{read_log_tail(plan, cause.rank)}".rstrip(), cause.arm_status, cause.arm
    )


@contextmanager
def _reporting(plan: Plan, on_progress: OnProgress, on_message: OnMessage) -> Iterator[None]:
    """Report the slowest rank's steps and all messages, five times a second in the block and once after it."""
    is_over, messages = Event(), MessageReader(Path(plan.messages_path))

    def watch() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.wait(0.2)
            for line in messages.take():
                on_message(line)
            ranks = read_counters(Path(plan.progress_path))
            on_progress(min(rank.steps_ended for rank in ranks), max(rank.steps_planned for rank in ranks))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _record_shared(
    plan: Plan, run_ranks: Callable[[Plan], LaunchFailure | None], on_message: OnMessage
) -> LaunchFailure | None:
    """Run all arms in one process per rank; return why the run failed, unless only single arms did.

    A process that ran out of memory is not reused: its peers are in a collective and its state is undefined. New
    processes start without the arm.
    """
    while (failure := run_ranks(plan)) and _is_dispensable(plan, failure):
        arm, (status, fault) = failure.arm, failure.arm_status
        on_message(f"arm {arm}: {status}; restarting the other arms without it")
        plan = _without(plan, arm, status, fault)
        for name in ("steps", "stalled", *(planned.arm.name for planned in plan.arms), arm):
            shutil.rmtree(plan.folder.path / name, ignore_errors=True)
    return failure


def _is_dispensable(plan: Plan, failure: LaunchFailure) -> bool:
    """Return True if a step of one arm ran out of memory and no other arm is compared with that arm."""
    needed = {planned.arm.against for planned in plan.arms} | {planned.arm.repeats for planned in plan.arms}
    needed |= {planned.arm.name for planned in plan.arms if planned.arm.baseline}
    return failure.arm_status[0] == "out of memory" and bool(failure.arm) and failure.arm not in needed


def _without(plan: Plan, arm: str, status: str, fault: str) -> Plan:
    marked = [replace(planned.arm, status=status, fault=fault) for planned in plan.arms if planned.arm.name == arm]
    remaining = tuple(planned for planned in plan.arms if planned.arm.name != arm)
    return replace(plan, arms=remaining, marked=(*plan.marked, *marked))


_REPORT_WITHIN_S = 2.0  # for ranks that lost a peer to write their errors, and for that peer to exit
_EXIT_WITHIN_S = 30.0  # for the other ranks to exit after the first one did
_GIVE_UP_WITHIN_S = 100.0  # for ranks to end a collective by its timeout, `world.TIMEOUT`, and to write which it was
_POLL_S = 0.1
_LINE_CHARACTERS = 200
_WHAT = re.compile(r"^ *what\(\): *(.*)$", re.MULTILINE)
_COMMUNICATES = re.compile(r'^\s*File ".*/torch/(distributed/|autograd/graph\.py)')


def wait_for_ranks(processes: Sequence[Popen[bytes]], plan: Plan) -> list[RankFailure] | LaunchFailure:
    """Wait for all ranks and return those that failed, as soon as one of them did: others may still run.

    Once a rank has finished its results are safe, so the exit of its peers is awaited for 30 s at most. Returns a
    failure of all ranks if none makes progress (`StallWatch`), or if the manifest is gone. Ranks that all wait in a
    collective are given the time to give it up, and to write which one it was.
    """
    timeout_s = give_up_at = float("inf")
    watch, stall = StallWatch(processes, plan), None
    while alive := [process for process in processes if process.poll() is None]:
        deadline = time.monotonic() + timeout_s
        is_there = plan.folder.manifest_path.is_file
        while time.monotonic() < deadline and all(process.poll() is None for process in alive) and is_there():
            time.sleep(_POLL_S)
            if stall is None and watch.has_stalled():
                stall, give_up_at = _stall_failure(processes, plan), time.monotonic() + _GIVE_UP_WITHIN_S
                if not all(_communicates(plan, rank) for rank in range(len(processes))):
                    return stall
            if stall is not None and time.monotonic() >= give_up_at:
                return stall
        if not is_there():
            return LaunchFailure(plan.folder.deleted_text, plan.folder.deleted_text)
        if any(failure.exit_code is not None for failure in _failures(processes, plan)):
            return _settled_failures(processes, plan)
        if all(process.poll() is None for process in alive):
            break
        timeout_s = _EXIT_WITHIN_S
    return _failures(processes, plan)


def write_log_headers(logs: Sequence[Path], header: str) -> None:
    """Append the line that separates the output of a process from that of earlier ones in the same log."""
    for log in logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(header)


def read_log_tail(plan: Plan, rank: int) -> str:
    """Return the last lines of a rank's log, or the innermost frames of its stack if it was asked for one."""
    text = _read_log(plan, rank)
    _, header, stack = text.rpartition(STACK_HEADER)
    lines = stack.splitlines()[:STACK_LINES] if header else text.splitlines()[-STACK_LINES:]
    return "\n".join(f"  {line[:_LINE_CHARACTERS]}" for line in lines)


def _failures(processes: Sequence[Popen[bytes]], plan: Plan) -> list[RankFailure]:
    """Return what is known of the ranks that have not finished, those that still run included."""
    failures = []
    exit_codes = [process.poll() for process in processes]  # before the counters: a rank may finish and exit meanwhile
    for rank, (exit_code, progress) in enumerate(zip(exit_codes, read_counters(Path(plan.progress_path)), strict=True)):
        if not progress.finished:
            error = read_error(plan.faults_folder, rank)
            error = error or RankError(_logged_exception(plan, rank) if exit_code == 1 else "", 0)
            message = f"{error.text}{_terminate_message(plan, rank, error.text)}"
            log_tail = read_log_tail(plan, rank)
            failures.append(RankFailure(rank, exit_code, message, log_tail, error.at_ns, error.arm))
    return failures


def _logged_exception(plan: Plan, rank: int) -> str:
    """Return the exception at the end of a log, of a rank that failed before it could write one, during imports.

    Torch prefixes the lines of a traceback with `[rank1]: `.
    """
    _, traceback, text = _read_log(plan, rank).rpartition("Traceback (most recent call last):")
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in text.splitlines()]
    return next((line for line in reversed(lines) if traceback and line and not line.startswith(" ")), "")


def _terminate_message(plan: Plan, rank: int, text: str) -> str:
    """Return `: its message`, of the C++ exception that ended a rank."""
    messages = _WHAT.findall(_read_log(plan, rank)) if ABORTED in text else ()
    return f": {messages[-1].strip()[:_LINE_CHARACTERS]}" if messages else ""


def _read_log(plan: Plan, rank: int) -> str:
    """Return what this process of the rank wrote into its log, the end of it if it is long."""
    text = ""
    with suppress(OSError), open_binary(plan.folder.log(rank)) as log:
        log.seek(max(log.seek(0, os.SEEK_END) - Most.LOG_TAIL, 0))
        text = log.read().decode(errors="replace")
    return (text.rpartition(plan.log_header)[2] if plan.log_header else text).strip()


def _settled_failures(processes: Sequence[Popen[bytes]], plan: Plan) -> list[RankFailure]:
    """Return the failures once one is a root cause, or after 2 s."""
    deadline = time.monotonic() + _REPORT_WITHIN_S
    while True:
        failures = _failures(processes, plan)
        if any(not failure.is_secondary for failure in failures):
            return failures
        if all(failure.exit_code is not None for failure in failures):
            return failures
        if time.monotonic() >= deadline:
            _request_stacks(processes, failures)
            return failures
        time.sleep(0.05)


def _request_stacks(processes: Sequence[Popen[bytes]], failures: Sequence[RankFailure]) -> None:
    """Make ranks that run and have written no error append their stacks to their logs.

    One that is stopped writes its stack when it is continued.
    """
    for failure in failures:
        process = processes[failure.rank]
        if failure.exit_code is None and not failure.message and process.poll() is None:
            signal_main_thread(process.pid, signal.SIGUSR1)
            signal_main_thread(process.pid, signal.SIGCONT)
    time.sleep(STACK_WITHIN_S)


def _stall_failure(processes: Sequence[Popen[bytes]], plan: Plan) -> LaunchFailure:
    """Return which rank the others wait for, if they do, and the line and the stack of each."""
    stopped = {rank for rank, process in enumerate(processes) if state(process.pid) == "T"}
    entered = [progress.phases_entered for progress in read_counters(Path(plan.progress_path))]
    _request_stacks(processes, [RankFailure(rank, None) for rank in range(len(processes))])
    late = [rank for rank, number in enumerate(entered) if number == min(entered)]
    stacks = [read_log_tail(plan, rank) for rank in range(len(processes))]
    places = [
        f"rank {rank} {'was stopped' if rank in stopped else 'is'} at {innermost_user_line(frames_of(stack))}"
        for rank, stack in enumerate(stacks)
    ]
    waiting = f"; the others wait for rank {late[0]}" if len(late) == 1 < len(entered) else ""
    logs = [f"{plan.folder.log(rank)}:\n{stack}" for rank, stack in enumerate(stacks)]
    fault = f"no rank made progress for {plan.hang_s:g} s: {', '.join(places)}{waiting}"
    return LaunchFailure(fault, "\n".join([f"{plan.out}: {fault}", *logs]))


def _communicates(plan: Plan, rank: int) -> bool:
    """Return whether the stack at the end of a rank's log is in a collective, or in backward, where DDP issues them."""
    return any(map(_COMMUNICATES.search, read_log_tail(plan, rank).splitlines()))


_STALL_POLL_S = 1.0
_SETTLED_S = 2.0
_BUSY_SHARE = 0.05  # of a core; threads of torch that only wait take less


class StallWatch:
    """Tells, each time it is asked, whether no rank has made progress for `plan.hang_s` seconds; 0: never.

    A rank that takes CPU time, by itself or in its children, or reads from a disk makes progress: it may compile or
    load. Without /proc every rank does.
    """

    __slots__ = ("_bound_s", "_counters", "_cpu_s", "_last_look", "_path", "_processes", "_since")

    def __init__(self, processes: Sequence[Popen[bytes]], plan: Plan) -> None:
        self._processes = processes
        self._bound_s = plan.hang_s
        self._path = Path(plan.progress_path)
        self._since = self._last_look = time.monotonic()
        self._counters: Sequence[Progress] = ()
        self._cpu_s: list[float] = []

    def has_stalled(self) -> bool:
        """Look at the ranks, at most once a second; /proc only once their counters stand still."""
        now = time.monotonic()
        if not self._bound_s or now - self._last_look < _STALL_POLL_S:
            return False
        elapsed_s, self._last_look = now - self._last_look, now
        counters = read_counters(self._path)
        if counters != self._counters:
            self._counters, self._cpu_s, self._since = counters, [], now
            return False
        if now - self._since < min(_SETTLED_S, self._bound_s):
            return False
        groups = [_group(process.pid) for process in self._processes]
        before, self._cpu_s = self._cpu_s, [total_s for total_s, _ in groups]
        if not before:  # the first look has nothing to compare with
            return False
        took_s = (after - earlier for earlier, after in zip(before, self._cpu_s, strict=True))
        if any(waits_for_disk for _, waits_for_disk in groups) or max(took_s) > _BUSY_SHARE * elapsed_s:
            self._since = now
        return now - self._since >= self._bound_s


def _group(pid: int) -> tuple[float, bool]:
    """Return the CPU time of a rank and its children so far, s, and whether one of them waits for a disk."""
    total_s, waits_for_disk, was_found = 0.0, False, False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = stat_fields(stat)
        if len(fields) > 15 and fields[2] == str(pid):
            was_found = True
            total_s += cpu_s(fields, with_children=True)
            waits_for_disk |= fields[0] == "D"
    return total_s, waits_for_disk or not was_found
