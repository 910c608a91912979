"""Peak memory of a CUDA device or, without one, of the process."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["NO_PEAK", "Peak", "memory_in_use", "read_peak", "reset_peak_memory"]


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak bytes of tensors and of the caching allocator; for a process, its resident memory and 0."""

    allocated: int
    reserved: int


NO_PEAK = Peak(0, 0)


def read_peak(device: torch.device) -> Peak:
    """Return the peak of the CUDA device since the last call, else of the process since `reset_peak_memory`.

    Of a device NO_PEAK where the allocator, one that is plugged in, keeps no account.
    """
    if device.type == "cuda":
        try:
            stats = torch.cuda.memory_stats_as_nested_dict(device)  # at once: flattened for each peak it takes 0.1 ms
            torch.cuda.reset_peak_memory_stats(device)
        except RuntimeError:
            return NO_PEAK
        return Peak(*(stats[key]["all"]["peak"] for key in ("allocated_bytes", "reserved_bytes")))
    # of this thread, but for the memory, which is the process's: for the times of all threads the kernel visits each
    who = getattr(resource, "RUSAGE_THREAD", getattr(resource, "RUSAGE_SELF", 0))
    kilobytes = resource.getrusage(who).ru_maxrss if resource is not None else 0
    return Peak(kilobytes if sys.platform == "darwin" else kilobytes * 1024, 0)


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak of the device or, only on Linux, of the process."""
    if device.type == "cuda":
        with suppress(RuntimeError):  # see `read_peak`
            torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def memory_in_use(device: torch.device) -> int:
    """Return the bytes of tensors on the CUDA device or, without one, of the process, whose peak begins anew."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    reset_peak_memory(device)
    return read_peak(device).allocated
