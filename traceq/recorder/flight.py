"""The flight recorder's entries of a window: sequence numbers that traces of gloo lack."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from traceq.runs.layout import replaced

__all__ = ["dump_flight"]


def dump_flight(path: Path, since_ns: int) -> Counter[str]:
    """Write the entries created since then (ns since the epoch); collectives by name, empty without a recorder."""
    c10d = getattr(torch._C, "_distributed_c10d", None)
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return Counter()
    document: dict[str, Any] = json.loads(dump())
    entries = [entry for entry in document.get("entries", []) if int(entry.get("time_created_ns", 0)) >= since_ns]
    if not entries:
        return Counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as part:
        part.write_text(json.dumps({**document, "entries": entries}))
    return Counter(str(entry.get("profiling_name", "")).partition(":")[2] for entry in entries)
