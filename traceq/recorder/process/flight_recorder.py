"""Dumps of torch's flight recorder: of a profiled window, and of a rank whose collectives never completed.

The dump of a window supplies the sequence numbers that gloo's traces lack.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceq.runs.run_folder import atomic_write

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
