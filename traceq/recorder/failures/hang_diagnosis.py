"""Diagnosis of a hang: dumps of the collectives that ranks issued, in which a desync shows, and where each waits."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import msgspec

from traceq.analysis.registry import analyze
from traceq.facts.timeline.call_sites import user_line
from traceq.model import Run
from traceq.recorder.failures.rank_errors import error_text
from traceq.recorder.failures.root_cause import is_peer_error
from traceq.recorder.process.flight_recorder import dump_stalled
from traceq.runs.flight_recorder import read_flights
from traceq.runs.run_folder import RunFolder

__all__ = ["dump_flight_recorder", "find_desync", "wait_for_dumps"]

_PEERS_WITHIN_S = 5.0


def dump_flight_recorder(folder: RunFolder, rank: int, error: BaseException) -> bool:
    """Write the collectives this rank issued, if it ended waiting for peers; return False if nothing was written."""
    return is_peer_error(error_text(error)) and dump_stalled(folder.stalled(rank), _innermost_user_line(error))


def wait_for_dumps(folder: RunFolder, num_ranks: int) -> None:
    """Wait up to 5 s for the dumps of all ranks: they time out at about the same time.

    A rank that exits before its peers have written theirs makes the launcher kill them.
    """
    deadline = time.monotonic() + _PEERS_WITHIN_S
    while time.monotonic() < deadline and not all(folder.stalled(rank).is_file() for rank in range(num_ranks)):
        time.sleep(0.05)


def find_desync(folder: RunFolder) -> str:
    """Return the first collective in which the dumped ranks differ, and where each rank waits; "" without a desync."""
    stalled = folder.stalled(0).parent
    if not stalled.is_dir():
        return ""
    flights, _ = read_flights(stalled, None)
    findings = analyze(Run(str(stalled), (), flights=flights), "desync").findings
    if not findings:
        return ""
    dumps = [(flight.rank, msgspec.json.decode(Path(flight.path).read_bytes(), type=_Dump)) for flight in flights]
    return "; ".join([findings[0].text, *(f"rank {rank} waits at {dump.waits_at}" for rank, dump in dumps)])


class _Dump(msgspec.Struct):
    waits_at: str


def _innermost_user_line(error: BaseException) -> str:
    """Return `file.py:41 function`, the innermost user line in the exception's traceback."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return user_line([f"{frame.filename}({frame.lineno}): {frame.name}" for frame in frames]) or "an unknown line"
