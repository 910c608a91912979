"""The slow oracle: what a trace says, computed a second time from the definitions alone.

Plain Python over `json`: dicts, lists and loops, no numpy and nothing of the product, so that a disagreement between
the two is a finding. The definitions are those of docs/method.md; where they leave a choice, a comment says which
reading was taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .collectives import collectives, memcpys
from .graphs import replayed_ns
from .partition import partition
from .phases import Phases
from .reader import read
from .steps import windows
from .syncs import find_syncs, total_syncs
from .unrecorded import gaps, opening, unrecorded_ns

__all__ = ["answer"]


def answer(path: Path | str) -> dict[str, Any]:
    """Every number the oracle knows about the trace file at `path`; times in int ns."""
    trace = read(path)
    phases = Phases(trace)
    hidden = gaps(trace)
    opens = opening(trace, hidden)
    steps = windows(trace, phases, opens)
    syncs = find_syncs(trace)
    cells = [partition(trace, phases, syncs, hidden, step["start_ns"], step["end_ns"]) for step in steps]
    for step, row in zip(steps, cells, strict=True):
        assert sum(row.values()) == step["window_ns"], (path, step["name"])
    rows = phases.rows()
    replay_ns, uncaptured_ns = replayed_ns(trace)
    return {
        "num_events": len(trace.events),
        "main_thread": trace.main,
        "steps": steps,
        "memcpy": memcpys(trace),
        "syncs": total_syncs(syncs),
        "collectives": collectives(trace),
        "phases": {"rule": phases.rule, "rows": rows},
        "partition": cells,
        "coverage": {
            "num_gpu_events": len(trace.device_ops),
            "unattributed_ns": rows["unattributed"]["gpu_sum_ns"],
            "before_window_ns": rows["before_window"]["gpu_sum_ns"],
            "unrecorded_ns": unrecorded_ns(trace, hidden, opens),
            "replay_ns": replay_ns,
            "uncaptured_ns": uncaptured_ns,
            "dropped_events": trace.num_dropped,
            "unread_counters": trace.num_counters,
        },
    }
