"""Memory in use on each device after every allocation of a trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.frozen import frozen
from traceq.model import Trace

_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 20: "privateuse"}
"""torch's DeviceType, as `[memory]` rows write it."""


@frozen(eq=False)
class MemoryUse:
    """M allocations and frees of one device, sorted by time.

    `name` like `cuda:0`; `ts`, `track`, `phase` int64[M] of the host; `change`, `level` int64[M] bytes, the level after
    each change; `reserved` int64[M] bytes held by the allocator, -1 if it is not recorded. If the trace records no
    levels (2021) they count from its start, and `is_absolute` is False.
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
    def peak_level(self) -> NDArray[np.int64]:
        """int64[M] bytes: the higher of the levels before and after each change."""
        return np.asarray(np.maximum(self.level, self.level - self.change))

    @property
    def is_host(self) -> bool:
        """Whether this is the memory of the CPU."""
        return self.name.startswith("cpu")


@once_per_trace
def memory_use(trace: Trace) -> tuple[MemoryUse, ...]:
    """Return the memory of each device that the trace records; accelerators come first."""
    allocations = trace.events.allocations
    devices = np.column_stack([allocations.device_type, allocations.device])
    keys, device_index = np.unique(devices, axis=0, return_inverse=True)
    order = np.argsort(allocations.ts, kind="stable")
    device_index = device_index.reshape(-1)[order]
    uses = [
        _use_of_device(trace, _name(device_type, device), order[device_index == index])
        for index, (device_type, device) in enumerate(keys.tolist())
    ]
    return tuple(sorted(uses, key=lambda use: (use.is_host, use.name)))


def _use_of_device(trace: Trace, name: str, rows: NDArray[np.int64]) -> MemoryUse:
    allocations = trace.events.allocations
    track = allocations.pid[rows].astype(np.int64) * len(trace.events.strings) + allocations.tid[rows]
    ts, change, level = allocations.ts[rows], allocations.bytes[rows], allocations.allocated[rows]
    reserved = allocations.reserved[rows]
    is_absolute = bool((level != -1).any())
    return MemoryUse(
        name=name,
        ts=ts,
        track=track,
        phase=phases(trace).phase_at(track, ts),
        change=change,
        level=level if is_absolute else np.cumsum(change),
        reserved=np.where(reserved > 0, reserved, -1),
        is_absolute=is_absolute,
    )


def _name(device_type: int, device: int) -> str:
    kind = _DEVICE_TYPES.get(device_type, f"device {device_type}")
    return kind if device < 0 else f"{kind}:{device}"
