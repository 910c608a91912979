"""Why ranks of an external launcher ended: without a launcher of traceq, the surviving ranks find the root cause."""

from __future__ import annotations

import time

from traceq.recorder.failures.hang_diagnosis import dump_flight_recorder, find_desync
from traceq.recorder.failures.rank_errors import error_text, read_error, write_error
from traceq.recorder.failures.root_cause import RankFailure, find_cause, is_peer_error
from traceq.recorder.failures.run_status import mark_ended, read_early_end, status_for
from traceq.recorder.process.signals import sigterm_deferred
from traceq.recorder.process.world import World
from traceq.recorder.spec.plan import Plan

__all__ = ["note_end"]

_PEERS_WITHIN_S = 5.0
_SILENT_EXIT = "exited without reporting an error (killed, or exited early)"
_SIGNAL_PREFIX = "ended by SIG"


def note_end(plan: Plan, world: World, error: BaseException) -> str:
    """Write why the recording ended into the manifest, and return it: this rank's error or that of the rank it lost.

    Each rank writes its error into the run's folder. A rank that lost its peers waits there for the error of the one
    that failed, and checks which processes of its own host have exited without writing one.
    """
    with sigterm_deferred():
        write_error(plan.faults_folder, world.rank, error)
        message = error_text(error)
        if world.size == 1:
            status, text = status_for(error), message
        elif is_peer_error(message):
            dump_flight_recorder(plan.folder, world.rank, error)
            status, text = _common_end(plan, world)
        else:
            status, text = status_for(error), f"rank {world.rank}: {message}"
        mark_ended(plan.folder, status, text)
    return text


def _common_end(plan: Plan, world: World) -> tuple[str, str]:
    """Return the status and root cause that all ranks agree on, once the failed rank is known or after 5 s."""
    deadline = time.monotonic() + _PEERS_WITHIN_S
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
    cause = find_cause(failures, {})
    return "failed", desync or f"rank {cause.rank}: {cause.text}"


def _rank_failure(plan: Plan, world: World, rank: int) -> RankFailure:
    """Return the rank's written error; else that it exited silently, or, with exit code None, that it may still run."""
    if error := read_error(plan.faults_folder, rank):
        return RankFailure(rank, 1, error.text, at_ns=error.at_ns)
    return RankFailure(rank, 1, _SILENT_EXIT) if world.peers[rank].has_exited else RankFailure(rank, None)
