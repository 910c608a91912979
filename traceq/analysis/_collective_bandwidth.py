"""Bandwidth of collectives as nccl-tests define it (PERFORMANCE.md there)."""

from __future__ import annotations

__all__ = ["algbw_gbps", "busbw_gbps"]

_RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def algbw_gbps(size_bytes: int | None, ns: int) -> float | None:
    """Return the bytes of the larger side divided by the time, GB/s."""
    return size_bytes / ns if size_bytes and ns else None


def busbw_gbps(algbw: float | None, name: str, num_ranks: int | None) -> float | None:
    """Return algbw times the share of the data that crosses the slowest link, GB/s."""
    if algbw is None or num_ranks is None:
        return None
    return algbw * _RING[name] * (num_ranks - 1) / num_ranks if name in _RING else algbw
