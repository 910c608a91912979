"""Why ranks of an external launcher ended: without a launcher of traceq, the surviving ranks find the root cause."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from traceq.recorder.failures.hang_diagnosis import (
    PEERS_WITHIN_S,
    dump_flight_recorder,
    dump_stalled,
    find_desync,
    frames_of,
    innermost_user_line,
)
from traceq.recorder.failures.rank_errors import (
    ABORTED,
    RankFailure,
    SilentExit,
    error_text,
    find_cause,
    is_peer_error,
    noted_arm,
    read_error,
    text_in_arm,
    write_error,
)
from traceq.recorder.failures.run_status import mark_ended, read_early_end, status_for
from traceq.recorder.process.signals import Stopped, sigterm_deferred
from traceq.recorder.spec.plan import Plan
from traceq.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from traceq.recorder.process.world import World

_SIGNAL_PREFIX = "ended by SIG"


def note_end(plan: Plan, world: World, error: BaseException) -> str:
    """Write why the recording ended into the manifest, and return it: this rank's error or that of the rank it lost.

    Each rank writes its error into the run's folder. A rank that lost its peers waits there for the error of the one
    that failed, and checks which processes of its own host have exited without writing one.
    """
    with sigterm_deferred():
        message = error_text(error)
        text_of_rank = text_in_arm(message, noted_arm(error))
        if world.size > 1:  # before its error, which tells the others that nothing more is to come from this rank
            dump_flight_recorder(plan.folder, world.rank, error)
        write_error(plan.faults_folder, world.rank, error)
        if world.size == 1:
            status, text = status_for(error), text_of_rank
        elif is_peer_error(message):
            status, text = _common_end(plan, world)
        else:
            status, text = status_for(error), f"rank {world.rank}: {text_of_rank}"
        mark_ended(plan.folder, status, text)
    return text


def note_abort(plan: Plan, world: World) -> None:
    """Write that a library ends this process, and the collectives that it issued: they differ in a desync.

    Called on a thread of the library; the main thread waits for a collective, if it does.
    """
    _note_stack(plan, world, RuntimeError(ABORTED), sys._current_frames().get(threading.main_thread().ident or 0))


@contextmanager
def sigterm_noted(plan: Plan, world: World) -> Iterator[None]:
    """Write in the block, before a SIGTERM ends this process, what it was doing.

    Launchers send one to the ranks whose peer failed. A process whose own exception is being reported ends by that; a
    handler of the job is left alone.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if getattr(sys, "last_value", None) is not None:  # set before sys.excepthook is called
            return
        _note_silent_exits(plan, world)
        _note_stack(plan, world, Stopped(signal.Signals(number)), frame)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) == note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _note_silent_exits(plan: Plan, world: World) -> None:
    """Write of each peer of this host that has ended without a report that it has: a launcher of others does not."""
    for rank, peer in enumerate(world.peers):
        if rank != world.rank and peer.has_exited and read_error(plan.faults_folder, rank) is None:
            write_error(plan.faults_folder, rank, SilentExit())


def _note_stack(plan: Plan, world: World, error: BaseException, frame: FrameType | None) -> None:
    """Write where this rank is, unless it has reported its end: then its stack is that of the report."""
    if read_error(plan.faults_folder, world.rank) is not None:
        return
    dump_stalled(plan.folder.stalled(world.rank), innermost_user_line(frames_of(traceback.extract_stack(frame))))
    write_error(plan.faults_folder, world.rank, error)


def cause_by_ranks(folder: RunFolder, num_ranks: int) -> str:
    """Return why a recording ended by what its ranks wrote, where none was left to find the cause; "" without that."""
    errors = ((rank, read_error(str(folder.faults), rank)) for rank in range(num_ranks))
    failures = [RankFailure(rank, 1, error.text, at_ns=error.at_ns, arm=error.arm) for rank, error in errors if error]
    if not failures:
        return ""
    return find_desync(folder) or find_cause(failures, {}).fault


def _common_end(plan: Plan, world: World) -> tuple[str, str]:
    """Return the status and root cause that all ranks agree on, once the failed rank is known or after 5 s."""
    deadline = time.monotonic() + PEERS_WITHIN_S
    while True:
        status, fault = read_early_end(plan.folder)
        if status:  # written by the failed rank; if its disk is full, this may be all that it could write
            return status, fault
        failures = [_rank_failure(plan, world, rank) for rank in range(world.size)]
        has_cause = any(not failure.is_secondary for failure in failures)
        if has_cause or all(failure.message for failure in failures) or time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    messages = [failure.message for failure in failures if failure.message]
    if all(message.startswith(_SIGNAL_PREFIX) for message in messages):
        return "interrupted", messages[0]
    desync = "" if has_cause else find_desync(plan.folder)
    return "failed", desync or find_cause(failures, {}).fault


def _rank_failure(plan: Plan, world: World, rank: int) -> RankFailure:
    """Return the rank's written error; else that it exited silently, or, with exit code None, that it may still run."""
    if error := read_error(plan.faults_folder, rank):
        return RankFailure(rank, 1, error.text, at_ns=error.at_ns, arm=error.arm)
    return RankFailure(rank, 1, str(SilentExit())) if world.peers[rank].has_exited else RankFailure(rank, None)
