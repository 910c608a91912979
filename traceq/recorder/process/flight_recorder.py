"""The flight recorder's entries: of a window, for the sequence numbers that gloo's traces lack, and of a rank's end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from traceq.runs.layout import replaced

__all__ = ["dump_flight", "dump_stalled"]


def dump_flight(path: Path, since_ns: int) -> Counter[str]:
    """Write the entries created since then (ns since the epoch); collectives by name, empty without a recorder."""
    document = _recorded()
    entries = [entry for entry in document.get("entries", []) if int(entry.get("time_created_ns", 0)) >= since_ns]
    if entries:
        _write(path, {**document, "entries": entries})
    return Counter(str(entry.get("profiling_name", "")).partition(":")[2] for entry in entries)


def dump_stalled(path: Path, waits_at: str) -> bool:
    """Write all entries, and at which line the program waited for one of them; False if there are none.

    Of which one cannot be told: gloo calls an entry over when it has failed, too.
    """
    document = _recorded()
    if not document.get("entries"):
        return False
    _write(path, {**document, "waits_at": waits_at})
    return True


def _recorded() -> dict[str, Any]:
    """The recorder's document; empty where this torch has no recorder."""
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace_json", None)
    document: dict[str, Any] = json.loads(dump()) if dump is not None else {}
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as part:
        part.write_text(json.dumps(document))
