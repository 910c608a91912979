"""The CUDA device that a process uses, by the memory that it holds there."""

from __future__ import annotations

from contextlib import suppress

import torch

__all__ = ["device_with_memory"]


def device_with_memory() -> torch.device | None:
    """Return the CUDA device on which this process holds memory, of several the current one, else that with most."""
    held: dict[int, int] = {}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # an allocator that keeps no account
            held = {index: torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count())}
    if not any(held.values()):
        return None
    current = torch.cuda.current_device()
    return torch.device("cuda", current if held[current] else max(held, key=lambda index: held[index]))
