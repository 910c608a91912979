"""How much memory each device's allocator had given out, after every allocation of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.model import Trace

__all__ = ["MemoryUse", "memory_use"]

_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 20: "privateuse"}
"""torch's DeviceType, as `[memory]` rows write it."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Allocations of one device by time, M of them.

    `name` like `cuda:0`; `ts`, `track`, `phase` int64[M] of the host; `change`, `level` int64[M] bytes, the level after
    each change; `reserved` int64[M] bytes that the allocator holds, -1 where it does not tell. Where the trace does not
    tell levels (2021) they count from its start, and `is_absolute` is False.
    """

    name: str
    ts: NDArray[np.int64]
    track: NDArray[np.int64]
    phase: NDArray[np.int64]
    change: NDArray[np.int64]
    level: NDArray[np.int64]
    reserved: NDArray[np.int64]
    is_absolute: bool

    @property
    def reach(self) -> NDArray[np.int64]:
        """int64[M] bytes: the higher of the levels before and after each change."""
        reach: NDArray[np.int64] = np.maximum(self.level, self.level - self.change)
        return reach

    @property
    def is_host(self) -> bool:
        """The memory of the CPU."""
        return self.name.startswith("cpu")


@once_per_trace
def memory_use(trace: Trace) -> tuple[MemoryUse, ...]:
    """Memory of each device that the trace tells of; accelerators come first."""
    told = trace.events.allocations
    keys, of_row = np.unique(np.column_stack([told.device_type, told.device]), axis=0, return_inverse=True)
    order = np.argsort(told.ts, kind="stable")
    of_row = of_row.reshape(-1)[order]
    found = [
        _of_device(trace, _name(device_type, device), order[of_row == number])
        for number, (device_type, device) in enumerate(keys.tolist())
    ]
    return tuple(sorted(found, key=lambda use: (use.is_host, use.name)))


def _of_device(trace: Trace, name: str, rows: NDArray[np.int64]) -> MemoryUse:
    told = trace.events.allocations
    track = told.pid[rows].astype(np.int64) * len(trace.events.strings) + told.tid[rows]
    change, level, reserved = told.bytes[rows], told.allocated[rows], told.reserved[rows]
    is_absolute = bool((level != -1).any())
    return MemoryUse(
        name=name,
        ts=told.ts[rows],
        track=track,
        phase=phases(trace).on(track, told.ts[rows]),
        change=change,
        level=level if is_absolute else np.cumsum(change),
        reserved=np.where(reserved > 0, reserved, -1),
        is_absolute=is_absolute,
    )


def _name(device_type: int, device: int) -> str:
    kind = _DEVICE_TYPES.get(device_type, f"device {device_type}")
    return kind if device < 0 else f"{kind}:{device}"
