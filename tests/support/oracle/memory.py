"""What an allocator's snapshot says of its peak and of its out-of-memory error, from its actions one by one."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Memory", "memory_of"]

SMALL = 1 << 20
IN_USE = ("active_allocated", "active_pending_free")


@dataclass
class Memory:
    """Bytes: allocated and reserved at the peak; of the last error what was asked for, and free on the device.

    Of the error's pool: what is free in its segments, and the largest block of it. None where there was no error.
    """

    peak: int
    reserved: int
    requested: int | None
    device_free: int | None
    pool_free: int | None
    largest_free: int | None


def memory_of(path: Path) -> Memory:
    """The memory of the one device of a snapshot: levels are followed back from the blocks at the end."""
    content = pickle.loads(path.read_bytes())
    (actions,) = [each for each in content["device_traces"] if each]
    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    allocated = sum(block["requested_size"] for block in blocks if block["state"] in IN_USE)
    reserved = sum(segment["total_size"] for segment in content["segments"])
    levels = [(allocated, reserved)]
    for action in reversed(actions):
        allocated -= change(action, "alloc", "free_completed")
        reserved -= change(action, "segment_alloc", "segment_free")
        levels.append((allocated, reserved))
    peak, reserved = max(reversed(levels), key=lambda level: level[0])
    errors = [action for action in actions if action["action"] == "oom"]
    if not errors:
        return Memory(peak, reserved, None, None, None, None)
    requested = errors[-1]["size"]
    free = [
        block["size"]
        for segment in content["segments"]
        if segment["segment_type"] == ("small" if requested <= SMALL else "large")
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return Memory(peak, reserved, requested, errors[-1].get("device_free"), sum(free), max(free, default=0))


def change(action: dict[str, Any], more: str, less: str) -> int:
    """By how many bytes an action changes a level."""
    return int(action["size"]) * ((action["action"] == more) - (action["action"] == less))
