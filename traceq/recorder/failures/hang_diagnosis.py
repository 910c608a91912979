"""Diagnosis of a hang: dumps of the collectives that ranks issued, in which a desync shows, and where each waits."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence

from traceq.analysis.registry import analyze
from traceq.claims.saying import text_of
from traceq.errors import RecordingFailed
from traceq.facts.timeline.call_sites import user_line
from traceq.model import Flight, Run
from traceq.recorder.failures.rank_errors import error_text
from traceq.recorder.failures.root_cause import is_peer_error
from traceq.recorder.process.flight_recorder import dump_stalled
from traceq.runs.flight_recorder import read_flights
from traceq.runs.run_folder import RunFolder

PEERS_WITHIN_S = 5.0
"""For which a failed rank waits for what its peers write."""
_STEP_END = "the end of a step, "
"""Where a rank waits for the others to record the next steps, and not in a collective of the job."""


def dump_flight_recorder(folder: RunFolder, rank: int, error: BaseException) -> bool:
    """Write the collectives this rank issued, if it ended waiting for peers; return False if nothing was written."""
    if not is_peer_error(error_text(error)):
        return False
    line = innermost_user_line(_stack(error))
    return dump_stalled(folder.stalled(rank), f"{_STEP_END}{line}" if isinstance(error, RecordingFailed) else line)


def wait_for_dumps(folder: RunFolder, num_ranks: int) -> None:
    """Wait up to 5 s for the dumps of all ranks: they time out at about the same time.

    A rank that exits before its peers have written theirs makes the launcher kill them.
    """
    deadline = time.monotonic() + PEERS_WITHIN_S
    while time.monotonic() < deadline and not all(folder.stalled(rank).is_file() for rank in range(num_ranks)):
        time.sleep(0.05)


def find_desync(folder: RunFolder) -> str:
    """Return the first collective in which the dumped ranks differ, and where each rank waits; "" without a desync."""
    stalled = folder.stalled(0).parent
    if not stalled.is_dir():
        return ""
    flights, _ = read_flights(stalled, None)
    findings = analyze(Run(str(stalled), (), flights=flights), "desync").findings
    difference = text_of(findings[0]) if findings else _uneven_text(flights)
    if not difference:
        return ""
    return "; ".join([difference, *(f"rank {flight.rank} waits at {flight.waits_at}" for flight in flights)])


def _uneven_text(flights: Sequence[Flight]) -> str:
    """Return how many collectives each rank has issued, if some wait at the end of a step and others before it."""
    counts = [int(flight.sequence.max(initial=0)) for flight in flights]
    if 0 in counts or len(set(counts)) < 2 or not any(flight.waits_at.startswith(_STEP_END) for flight in flights):
        return ""
    issued = (
        f"rank {flight.rank} has issued {count:,} collectives, "
        f"last {flight.name[flight.sequence.tolist().index(count)].partition(':')[2]}"
        for flight, count in zip(flights, counts, strict=True)
    )
    return f"desync: {'; '.join(issued)}"


def _stack(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames around the one that caught the exception, then those from it to the one that raised it."""
    caught = error.__traceback__
    around = caught.tb_frame.f_back if caught is not None else None
    return [*(traceback.extract_stack(around) if around is not None else ()), *traceback.extract_tb(caught)]


def innermost_user_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return `file.py:41 function`, the innermost user line of a stack, whose innermost frame is the last."""
    stack = [f"{frame.filename}({frame.lineno}): {frame.name}" for frame in reversed(frames)]
    return user_line(stack) or "an unknown line"
