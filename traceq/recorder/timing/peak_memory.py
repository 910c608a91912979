"""Peak memory: of a CUDA device since it was last asked, or of the process."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["NO_PEAK", "Peak", "peak", "reset_peak_memory"]


@dataclass(frozen=True, slots=True)
class Peak:
    """Most bytes that tensors took of a device, and that its allocator kept; of a process all it had, and nothing."""

    allocated: int
    reserved: int


NO_PEAK = Peak(0, 0)


def peak(device: torch.device) -> Peak:
    """Of the CUDA device since the last call; without one of the process since `forget_peak`."""
    if device.type == "cuda":
        found = Peak(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
        torch.cuda.reset_peak_memory_stats(device)
        return found
    try:
        import resource
    except ImportError:  # Windows
        return NO_PEAK
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Peak(kilobytes if sys.platform == "darwin" else kilobytes * 1024, 0)


def reset_peak_memory(device: torch.device) -> None:
    """Let the peak begin anew; the process's only where the system can (Linux)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
