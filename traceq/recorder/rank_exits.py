"""How the ranks of a launch ended, from their processes, their counters, what they told, and their logs."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

from traceq.recorder.process.processes import wait_for_end
from traceq.recorder.process.progress_counters import read_pulses
from traceq.recorder.process.rank_errors import RankError, read_told
from traceq.recorder.process.root_cause import Failure
from traceq.recorder.spec.plan import Plan

__all__ = ["begin_logs", "tail", "wait_for_ranks"]

_TAIL_LINES = 15
_STACK = "(most recent call first):\n"
_TELLING_S = 2.0  # for ranks that lost a peer to tell so, and for that peer to end
_LEAVING_S = 30.0  # for ranks to leave once one of them has left
_STACK_S = 0.5


def wait_for_ranks(processes: Sequence[Popen[bytes]], plan: Plan) -> list[Failure]:
    """Wait for all ranks; those that did not finish, as soon as one of them ended: others may still run.

    A rank that finished has nothing to lose, however it leaves, and is waited for only for a while.
    """
    patience_s = float("inf")
    while running := [process for process in processes if process.poll() is None]:
        wait_for_end(running, patience_s)
        if any(failure.exit_code is not None for failure in _failures(processes, plan)):
            return _settled(processes, plan)
        if all(process.poll() is None for process in running):
            break
        patience_s = _LEAVING_S
    return _failures(processes, plan)


def begin_logs(logs: Sequence[Path], head: str) -> None:
    """Append the line that parts what a process writes from what those before it wrote."""
    for log in logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(head)


def tail(plan: Plan, rank: int) -> str:
    """Last lines of a rank's log; of one that was asked where it hangs, the innermost lines of its stack."""
    text = _log(plan, rank)
    _, asked, stack = text.rpartition(_STACK)
    lines = stack.splitlines()[:_TAIL_LINES] if asked else text.splitlines()[-_TAIL_LINES:]
    return "\n".join(f"  {line}" for line in lines)


def _failures(processes: Sequence[Popen[bytes]], plan: Plan) -> list[Failure]:
    """Of ranks that did not finish, or not yet, what is known by now."""
    found = []
    exit_codes = [process.poll() for process in processes]  # first: a rank may finish, and leave, just now
    for rank, (exit_code, progress) in enumerate(zip(exit_codes, read_pulses(Path(plan.pulse)), strict=True)):
        if not progress.finished:
            told = read_told(plan.faults, rank) or RankError(_last_words(plan, rank) if exit_code == 1 else "", 0)
            found.append(Failure(rank, exit_code, told.text, tail(plan, rank), told.at_ns, told.arm))
    return found


def _last_words(plan: Plan, rank: int) -> str:
    """The exception at a log's end, of a rank that fell before it could tell one: it was still importing.

    Torch begins each line of a traceback with `[rank1]: `.
    """
    _, raised, text = _log(plan, rank).rpartition("Traceback (most recent call last):")
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in text.splitlines()]
    return next((line for line in reversed(lines) if raised and line and not line.startswith(" ")), "")


def _log(plan: Plan, rank: int) -> str:
    path = plan.folder.log(rank)
    text = path.read_text(errors="replace") if path.is_file() else ""
    return (text.rpartition(plan.log_head)[2] if plan.log_head else text).strip()


def _settled(processes: Sequence[Popen[bytes]], plan: Plan) -> list[Failure]:
    """The failures once one is a rank's own, or no more can be expected."""
    until = time.monotonic() + _TELLING_S
    while True:
        failures = _failures(processes, plan)
        if any(not failure.is_secondary for failure in failures):
            return failures
        if all(failure.exit_code is not None for failure in failures):
            return failures
        if time.monotonic() >= until:
            return _asked(processes, plan, failures)
        time.sleep(0.05)


def _asked(processes: Sequence[Popen[bytes]], plan: Plan, failures: Sequence[Failure]) -> list[Failure]:
    """The failures, with the stacks of ranks that told nothing in their logs, where they can still write them."""
    for failure in failures:
        if failure.exit_code is None and not failure.message:
            with suppress(ProcessLookupError):
                processes[failure.rank].send_signal(signal.SIGUSR1)
    time.sleep(_STACK_S)
    return list(failures)
