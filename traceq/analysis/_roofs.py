"""Rows of modelled work against the roofs of a device: which roof binds, its share, and the time above it."""

from __future__ import annotations

from traceq.facts.roofline.peaks import Peaks
from traceq.frozen import frozen

__all__ = ["Roofed", "against_roofs"]

_PER_NS = 1e-9


@frozen
class Roofed:
    """Work against its roofs.

    `roof`: `compute` or `memory`, the one that binds; "" where the peaks do not tell. `least_ns` that the work takes at
    that roof. `doubt`: why the work exceeds its roof or is not known, which is no result; "" otherwise.
    """

    roof: str
    least_ns: float
    doubt: str = ""

    def share(self, ns: int) -> float | None:
        """Return the share of the roof that is reached in so many ns, in percent; None where there is no result."""
        return 100 * self.least_ns / ns if self.roof and not self.doubt and ns else None

    def lost_ns(self, ns: int) -> int | None:
        """Return the time above the roof; None where there is no result."""
        return round(max(ns - self.least_ns, 0)) if self.roof and not self.doubt else None


def against_roofs(peaks: Peaks | None, *, flops: int, size_bytes: int, dtype: str, ns: int, unsure: str = "") -> Roofed:
    """Return which roof binds work that took `ns`; `unsure`: why so much work may not be what was done.

    Work above its roof has a doubt instead of a share: what is small is in a cache, not in memory; else the model or
    the peak is wrong.
    """
    if peaks is None or (flops and not peaks.rate(dtype)) or not peaks.bandwidth:
        return Roofed("", 0.0)
    compute_ns = flops / (peaks.rate(dtype) * _PER_NS) if flops else 0.0
    memory_ns = size_bytes / (peaks.bandwidth * _PER_NS)
    roof, least_ns = ("compute", compute_ns) if compute_ns > memory_ns else ("memory", memory_ns)
    if unsure or least_ns <= ns:
        return Roofed(roof, least_ns, unsure)
    return Roofed(roof, least_ns, "in cache, or a bound" if roof == "memory" else "model or peak is wrong")
