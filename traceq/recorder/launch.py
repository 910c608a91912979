"""Start the ranks of a plan on this machine, wait for them, and report the root cause if they fail."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from torch._C._distributed_c10d import TCPStore

from traceq.errors import RecordingFailed, TraceqError
from traceq.recorder.failures.hang_diagnosis import find_desync
from traceq.recorder.failures.rank_errors import error_text
from traceq.recorder.failures.rank_exits import read_log_tail, wait_for_ranks, write_log_headers
from traceq.recorder.failures.root_cause import LaunchFailure, RankFailure, find_cause
from traceq.recorder.failures.run_status import mark_ended
from traceq.recorder.isolated_arms import next_arms_of, record_isolated
from traceq.recorder.process.child_processes import running_processes
from traceq.recorder.process.environment_variables import rank_variables
from traceq.recorder.process.progress_counters import create_counters, read_counters
from traceq.recorder.process.rank_messages import MessageReader
from traceq.recorder.process.signals import Stopped, stoppable
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.recipe import Recipe

OnMessage = Callable[[str], None]

_WORKER = "traceq.recorder.rank_process"


def launch(
    plan: Plan, recipe: Recipe[Any], on_progress: Callable[[int, int], None], on_message: Callable[[str], None]
) -> None:
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


def _run_ranks(
    plan: Plan, on_progress: Callable[[int, int], None], on_message: Callable[[str], None]
) -> LaunchFailure | None:
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
def _reporting(
    plan: Plan, on_progress: Callable[[int, int], None], on_message: Callable[[str], None]
) -> Iterator[None]:
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
