"""Start the ranks of a plan on this machine, wait for them, and say who is to blame when they fail."""

from __future__ import annotations

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
from traceq.recorder.isolated_arms import record_apart
from traceq.recorder.process.environment_variables import rank_variables
from traceq.recorder.process.processes import running
from traceq.recorder.process.progress_counters import create_pulses, read_pulses
from traceq.recorder.process.rank_errors import error_text
from traceq.recorder.process.rank_messages import News
from traceq.recorder.process.root_cause import Failed, Failure, find_cause
from traceq.recorder.process.run_status import mark
from traceq.recorder.process.signals import Stopped, stoppable
from traceq.recorder.process.stalled import find_desync
from traceq.recorder.rank_exits import begin_logs, tail, wait_for_ranks
from traceq.recorder.shared_process import record_together
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.recipe import Recipe

__all__ = ["launch"]

_WORKER = "traceq.recorder.worker"


def launch(
    plan: Plan, recipe: Recipe[Any], on_progress: Callable[[int, int], None], on_news: Callable[[str], None]
) -> None:
    """Run every rank of the plan; RecordingFailed names the rank that failed first and why, with its log's tail.

    `on_progress(steps_ended, steps_planned)` and `on_news(line)` may be called from another thread.
    KeyboardInterrupt and SystemExit(143) pass after the ranks are gone; the manifest then says so.
    """
    try:
        with stoppable():
            if plan.replicates:
                failed = record_apart(plan, recipe, _run_ranks, on_progress, on_news)
            else:
                failed = record_together(plan, lambda left: _run_ranks(left, on_progress, on_news), on_news)
    except Stopped as stopped:
        mark(plan.folder, "interrupted", error_text(stopped))
        raise stopped.as_exit from None
    except (OSError, TraceqError) as fault:
        mark(plan.folder, "failed", error_text(fault))
        raise
    if failed:
        mark(plan.folder, "failed", failed.fault)
        raise RecordingFailed(failed.text)


def _run_ranks(plan: Plan, on_progress: Callable[[int, int], None], on_news: Callable[[str], None]) -> Failed | None:
    """The plan's ranks, from their start to their end; why they failed, unless the run is complete."""
    with tempfile.TemporaryDirectory(prefix="traceq-") as scratch:
        plan = replace(plan, scratch=scratch)
        plan_path = Path(scratch) / "plan.json"
        plan_path.write_bytes(plan.to_bytes())
        create_pulses(Path(plan.pulse), plan.num_ranks)
        logs = [plan.folder.log(rank) for rank in range(plan.num_ranks)]
        begin_logs(logs, plan.log_head)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ranks = range(plan.num_ranks)
        command = [sys.executable, "-u", "-m", _WORKER, str(plan_path)]
        variables = [rank_variables(rank, plan.num_ranks, store.port, plan.sharing) for rank in ranks]
        try:
            with (
                running(command, variables, logs) as processes,
                _watched(plan, on_progress, on_news),
            ):
                failures = wait_for_ranks(processes, plan)
        finally:
            plan.folder.sweep()
        if failures and not plan.folder.is_complete:
            return _explain(plan, failures)
        for failure in failures:
            on_news(f"traceq: note: rank {failure.rank}: {failure.text}; by then the run was complete")
    return None


def _explain(plan: Plan, failures: Sequence[Failure]) -> Failed:
    desync = find_desync(plan.folder) if all(failure.is_secondary for failure in failures) else ""
    if desync:
        return Failed(desync, f"{plan.folder.stalled(0).parent}: {desync}")
    beats = {rank: progress.phases_entered for rank, progress in enumerate(read_pulses(Path(plan.pulse)))}
    cause = find_cause(failures, beats)
    fault, log = f"rank {cause.rank}: {cause.text}", plan.folder.log(cause.rank)
    return Failed(fault, f"{log}: {fault}\n{tail(plan, cause.rank)}".rstrip(), cause.of_arm, cause.arm)


@contextmanager
def _watched(plan: Plan, on_progress: Callable[[int, int], None], on_news: Callable[[str], None]) -> Iterator[None]:
    """Report the slowest rank's steps and all news, several times a second while the block runs and once after it."""
    over, news = Event(), News(Path(plan.news))

    def watch() -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(0.2)
            for line in news.take():
                on_news(line)
            ranks = read_pulses(Path(plan.pulse))
            on_progress(min(rank.steps_ended for rank in ranks), max(rank.steps_planned for rank in ranks))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
