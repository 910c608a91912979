"""Captures of CUDA graphs: what is recorded meanwhile runs later, or never."""

from __future__ import annotations

import torch

__all__ = ["CAPTURED_STEP", "is_capturing"]

CAPTURED_STEP = (
    "the job captures its step in a CUDA graph, and a replay shows no forward, backward or optimizer: use "
    "traceq.record in the loop"
)


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured on this thread's stream: nothing may wait for the device."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
