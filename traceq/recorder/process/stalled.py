"""Ranks whose collectives never came to an end leave behind what they had issued, which tells a desync."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import msgspec

from traceq.analysis.registry import analyze
from traceq.facts.timeline.call_sites import user_line
from traceq.model import Run
from traceq.recorder.process.flight_recorder import dump_stalled
from traceq.recorder.process.rank_errors import error_text
from traceq.recorder.process.root_cause import is_of_a_peer
from traceq.runs.flight_recorder import read_flights
from traceq.runs.layout import RunFolder

__all__ = ["dump_flight_recorder", "find_desync", "wait_for_flights"]

PEERS_S = 5.0


def dump_flight_recorder(folder: RunFolder, rank: int, fault: BaseException) -> bool:
    """Write what this rank issued, if what ended it is that peers did not answer; False if there was nothing."""
    return is_of_a_peer(error_text(fault)) and dump_stalled(folder.stalled(rank), _line(fault))


def wait_for_flights(folder: RunFolder, num_ranks: int) -> None:
    """Wait a little for those of the peers: ranks give up at about the same time, and who leaves has others killed."""
    until = time.monotonic() + PEERS_S
    while time.monotonic() < until and not all(folder.stalled(rank).is_file() for rank in range(num_ranks)):
        time.sleep(0.05)


def find_desync(folder: RunFolder) -> str:
    """The first collective in which ranks that left something behind differ, and where each waited; "" for none."""
    place = folder.stalled(0).parent
    if not place.is_dir():
        return ""
    flights, _ = read_flights(place, None)
    findings = analyze(Run(str(place), (), flights=flights), "desync").findings
    if not findings:
        return ""
    waits = [(flight.rank, msgspec.json.decode(Path(flight.path).read_bytes(), type=_Left)) for flight in flights]
    return "; ".join([findings[0].text, *(f"rank {rank} waits at {left.waits_at}" for rank, left in waits)])


class _Left(msgspec.Struct):
    waits_at: str


def _line(fault: BaseException) -> str:
    """`file.py:41 function`, the innermost line of the user's that it passed."""
    frames = reversed(traceback.extract_tb(fault.__traceback__))
    return user_line([f"{frame.filename}({frame.lineno}): {frame.name}" for frame in frames]) or "no line of the recipe"
