"""Dumps of torch's flight recorder: of a profiled window, and of a hang, in which a desync and where ranks wait show.

The dump of a window supplies the sequence numbers that gloo's traces lack.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceq.analysis.registry import analyze
from traceq.claims.saying import text_of
from traceq.errors import RecordingFailed
from traceq.facts.timeline.call_sites import user_line
from traceq.model import Flight, Run
from traceq.recorder.failures.rank_errors import error_text, is_peer_error
from traceq.runs.flight_recorder import read_flights
from traceq.runs.run_folder import RunFolder, atomic_write

Entry = dict[str, Any]


def flight_entries(since_ns: int) -> list[Entry]:
    """Return the entries created since `since_ns` (ns since the epoch), oldest first."""
    entries: list[Entry] = _flight_record().get("entries", [])
    return [entry for entry in entries if int(entry.get("time_created_ns", 0)) >= since_ns]


def write_flight(path: Path, entries: Sequence[Entry]) -> Counter[str]:
    """Write a dump with these entries and return the collectives by name.

    The counter is empty where torch has no flight recorder.
    """
    if entries:
        _write(path, {**_flight_record(), "entries": entries})
    return Counter(str(entry.get("profiling_name", "")).partition(":")[2] for entry in entries)


def dump_stalled(path: Path, waits_at: str) -> bool:
    """Write all entries and the source line at which the program waits; return False if there are no entries.

    Nor is anything written where the run's folder was deleted: it would come back. The dump does not identify the
    collective it waits for: gloo also marks failed entries as completed.
    """
    document = _flight_record()
    if not document.get("entries") or not path.parent.parent.is_dir():
        return False
    _write(path, {**document, "waits_at": waits_at})
    return True


def _flight_record() -> dict[str, Any]:
    """Return the flight recorder's document; empty where this torch has no recorder."""
    import torch  # not by the launcher of a job, which reads dumps alone

    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace_json", None)
    document: dict[str, Any] = json.loads(dump()) if dump is not None else {}
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_text(json.dumps(document))


_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
STACK_LINES = 15  # that are shown of one
PEERS_WITHIN_S = 5.0
"""For which a failed rank waits for what its peers write."""
_STEP_END = "the end of a step, "
"""Where a rank waits for the others to record the next steps, and not in a collective of the job."""


def dump_flight_recorder(folder: RunFolder, rank: int, error: BaseException) -> bool:
    """Write the collectives this rank issued, if it ended waiting for peers; return False if nothing was written."""
    if not is_peer_error(error_text(error)):
        return False
    line = innermost_user_line(frames_of(_stack(error)))
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


def frames_of(stack: str | Sequence[traceback.FrameSummary]) -> list[str]:
    """Return each frame of a stack as `file.py(41): function`, innermost first: as faulthandler or Python have it."""
    if isinstance(stack, str):
        return [f"{match['file']}({match['line']}): {match['function']}" for match in _FRAME.finditer(stack)]
    return [f"{frame.filename}({frame.lineno}): {frame.name}" for frame in reversed(stack)]


def innermost_user_line(frames: Sequence[str]) -> str:
    """Return `file.py:41 function`, the first user line of frames."""
    return user_line(frames) or "an unknown line"
