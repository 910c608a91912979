"""A rule on every rank, and the rank on which it matters most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from traceq.model import Run, Trace
from traceq.report import Finding

__all__ = ["on_the_worst_rank"]


def on_the_worst_rank(run: Run, rule: Callable[[Trace], Finding | None]) -> tuple[Finding, ...]:
    """What a rule finds on the rank where it gives back most, which is named if there are several; nothing if it finds
    nothing on any."""
    found = [(finding, trace.rank) for trace in run.traces if (finding := rule(trace)) is not None]
    if not found:
        return ()
    finding, rank = max(found, key=lambda each: each[0].ns)
    return (replace(finding, text=f"{finding.text} (rank {rank})") if len(run.traces) > 1 else finding,)
