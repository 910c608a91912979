"""The device that a process uses, by the memory that it holds there."""

from __future__ import annotations

from contextlib import suppress

import torch

__all__ = ["device_with_memory", "host_note", "other_accelerator"]


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


def other_accelerator() -> str:
    """Return mps or xpu if this process holds memory there, else ""."""
    if torch.backends.mps.is_available() and torch.mps.current_allocated_memory():
        return "mps"
    reserved = getattr(torch.xpu, "memory_reserved", int)  # torch 2.4 has no such function
    return "xpu" if torch.xpu.is_available() and reserved() else ""


def host_note(kind: str) -> str:
    """Return what times of the host do not tell of steps on a device that is no CUDA device."""
    return (
        f"the models are on {kind}: steps are timed on the host, which does not wait for that device; an arm has its "
        "own time only where each step waits, as for loss.item()"
    )
