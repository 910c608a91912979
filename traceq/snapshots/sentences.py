"""Every sentence about memory snapshots: caveats by their code, titles and notes of tables, what is unknown.

Fields are texts that their callers format, and counts.
"""

from __future__ import annotations

from traceq.model import Caveat

_CAVEATS = {
    "no_history": (
        "{path}: no history of allocations, so only the end is known: call "
        "torch.cuda.memory._record_memory_history() first, and dump while it is on"
    ),
    "unrecorded_allocations": (
        "{size} of the {peak} at the peak ({num:,} allocations) are older than the {num_actions:,} recorded actions, "
        "so their line and kind are unknown: record from the start"
    ),
    "history_cut": "{path}: the history was cut (max_entries); the peak shown is that of the rest",
    "contradictions": "{path}: {num:,} actions contradict others or the blocks",
    "lost_contradictions": (
        "{path}: {num:,} actions contradict others or the blocks; {lost} are in no block at the end"
    ),
    "other_device": "the highest {moment} of A is on device {a}, that of B on {b}",
}

DEVICES = "memory snapshot of device{s} {numbers}"
MOMENTS = {"peak": "at the peak", "oom": "when memory ran out", "end": "at the end"}
ALIVE = "Alive {moment}{on}, by line"
BY_LINE = "What came and went at the {moment}, by line"
MORE_ROWS = "{num:,} more rows, in --json, have {sum}."
ALLOCATED_NOTE = "Allocated: bytes as they were asked for. Reserved: what the driver gave."
KINDS_NOTE = "What decides the kind: docs/analyses/snapshots.md; what no rule decides is `other`."
SEGMENTS_NOTE = (
    "Free memory beside blocks in use is an inactive split; torch.cuda.empty_cache() returns whole segments."
)
NO_REPORT = "no report {name!r} of a memory snapshot; choose from {names}"
UNKNOWN = {
    "lines": ("the lines that allocate", "_record_memory_history(context='all')"),
    "backward": ("what backward and workspaces allocate", "_record_memory_history(stacks='all')"),
}
"""What the stacks do not tell, with the argument that records it."""


def caveat(code: str, **fields: str | int) -> Caveat:
    """Return the caveat of a code with its fields filled in."""
    return Caveat(code.removeprefix("lost_"), _CAVEATS[code].format(**fields))
