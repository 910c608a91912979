"""How the ranks of a launch ended, from their exit codes, progress counters, written errors and logs."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

from traceq.recorder.failures.rank_errors import RankError, read_error
from traceq.recorder.failures.root_cause import RankFailure
from traceq.recorder.process.child_processes import wait_for_any_exit
from traceq.recorder.process.progress_counters import read_counters
from traceq.recorder.spec.plan import Plan

__all__ = ["read_log_tail", "wait_for_ranks", "write_log_headers"]

_TAIL_LINES = 15
_STACK_HEADER = "(most recent call first):\n"  # of faulthandler
_REPORT_WITHIN_S = 2.0  # for ranks that lost a peer to write their errors, and for that peer to exit
_EXIT_WITHIN_S = 30.0  # for the other ranks to exit after the first one did
_STACK_WITHIN_S = 0.5


def wait_for_ranks(processes: Sequence[Popen[bytes]], plan: Plan) -> list[RankFailure]:
    """Wait for all ranks and return those that failed, as soon as one of them did: others may still run.

    Once a rank has finished its results are safe, so the exit of its peers is awaited for 30 s at most.
    """
    timeout_s = float("inf")
    while alive := [process for process in processes if process.poll() is None]:
        wait_for_any_exit(alive, timeout_s)
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
    _, header, stack = text.rpartition(_STACK_HEADER)
    lines = stack.splitlines()[:_TAIL_LINES] if header else text.splitlines()[-_TAIL_LINES:]
    return "\n".join(f"  {line}" for line in lines)


def _failures(processes: Sequence[Popen[bytes]], plan: Plan) -> list[RankFailure]:
    """Return what is known of the ranks that have not finished, those that still run included."""
    failures = []
    exit_codes = [process.poll() for process in processes]  # before the counters: a rank may finish and exit meanwhile
    for rank, (exit_code, progress) in enumerate(zip(exit_codes, read_counters(Path(plan.progress_path)), strict=True)):
        if not progress.finished:
            error = read_error(plan.faults_folder, rank)
            error = error or RankError(_logged_exception(plan, rank) if exit_code == 1 else "", 0)
            log_tail = read_log_tail(plan, rank)
            failures.append(RankFailure(rank, exit_code, error.text, log_tail, error.at_ns, error.arm))
    return failures


def _logged_exception(plan: Plan, rank: int) -> str:
    """Return the exception at the end of a log, of a rank that failed before it could write one, during imports.

    Torch prefixes the lines of a traceback with `[rank1]: `.
    """
    _, traceback, text = _read_log(plan, rank).rpartition("Traceback (most recent call last):")
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in text.splitlines()]
    return next((line for line in reversed(lines) if traceback and line and not line.startswith(" ")), "")


def _read_log(plan: Plan, rank: int) -> str:
    """Return what this process of the rank wrote into its log."""
    path = plan.folder.log(rank)
    text = path.read_text(errors="replace") if path.is_file() else ""
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
    """Make ranks that run and have written no error append their stacks to their logs."""
    for failure in failures:
        if failure.exit_code is None and not failure.message:
            with suppress(ProcessLookupError):
                processes[failure.rank].send_signal(signal.SIGUSR1)
    time.sleep(_STACK_WITHIN_S)
