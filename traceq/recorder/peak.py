"""Peak memory: of a CUDA device since it was last asked, or of the process."""

from __future__ import annotations

import sys

import torch

__all__ = ["peak_bytes"]


def peak_bytes(device: torch.device) -> int:
    """Most bytes allocated on the CUDA device since the last call; without one the process's peak so far."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return int(peak)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024
