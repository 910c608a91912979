"""Why ranks that someone else started ended. Nobody watches them, so those that are left find out together."""

from __future__ import annotations

import time

from traceq.recorder.process.rank_errors import error_text, read_told, tell_fault
from traceq.recorder.process.root_cause import Failure, find_cause, is_of_a_peer
from traceq.recorder.process.run_status import mark, marked, status_after
from traceq.recorder.process.signals import undisturbed
from traceq.recorder.process.stalled import dump_flight_recorder, find_desync
from traceq.recorder.process.world import World
from traceq.recorder.spec.plan import Plan

__all__ = ["note_end"]

_PATIENCE_S = 5.0
_GONE = "is gone, and told nothing: killed, or it left early"
_STOPPED = "ended by SIG"


def note_end(plan: Plan, world: World, fault: BaseException) -> str:
    """Note in the manifest why the recording ended, and return it: this rank's fault, or that of the rank it lost.

    Each rank leaves its fault in the run's folder. One that lost its peers waits there for the word of the one that
    failed, and sees on its own host who is gone without one.
    """
    with undisturbed():
        tell_fault(plan.faults, world.rank, fault)
        own = error_text(fault)
        if world.size == 1:
            status, text = status_after(fault), own
        elif is_of_a_peer(own):
            dump_flight_recorder(plan.folder, world.rank, fault)
            status, text = _common_end(plan, world)
        else:
            status, text = status_after(fault), f"rank {world.rank}: {own}"
        mark(plan.folder, status, text)
    return text


def _common_end(plan: Plan, world: World) -> tuple[str, str]:
    until = time.monotonic() + _PATIENCE_S
    while True:
        status, fault = marked(plan.folder)
        if status:  # by the rank that failed: its disk may have refused everything else
            return status, fault
        failures = [_failure(plan, world, rank) for rank in range(world.size)]
        is_known = any(not failure.is_secondary for failure in failures)
        if is_known or all(failure.message for failure in failures) or time.monotonic() >= until:
            break
        time.sleep(0.05)
    told = [failure.message for failure in failures if failure.message]
    if all(message.startswith(_STOPPED) for message in told):
        return "interrupted", told[0]
    desync = "" if is_known else find_desync(plan.folder)
    cause = find_cause(failures, {})
    return "failed", desync or f"rank {cause.rank}: {cause.text}"


def _failure(plan: Plan, world: World, rank: int) -> Failure:
    """What a rank told, else that it is gone, or that it may still run."""
    if told := read_told(plan.faults, rank):
        return Failure(rank, 1, told.text, at_ns=told.at_ns)
    return Failure(rank, 1, _GONE) if world.peers[rank].is_gone else Failure(rank, None)
