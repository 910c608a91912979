"""A run and the analyses asked for, as one sheet."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.analyses.registry import analyze_all
from traceq.model import Run
from traceq.report import Sheet, Source

__all__ = ["describe", "sheet"]


def describe(run: Run) -> Source:
    """What was read, in a line."""
    environment = run.manifest.environment if run.manifest is not None else {}
    first = run.traces[0] if run.traces else None
    return Source(
        path=run.path,
        num_events=sum(len(trace.events) for trace in run.traces),
        ranks=run.ranks,
        world_size=first.world_size if first else run.manifest.num_ranks if run.manifest else 0,
        device=first.device if first else "",
        torch=str(environment.get("torch", "")),
        arm=run.arm,
        step=first.only.number if first and first.only else None,
    )


def sheet(run: Run, only: Sequence[str] = ()) -> Sheet:
    """All analyses of a run, or some. Raises UsageFault for a name that is none."""
    return Sheet(describe(run), analyze_all(run, only), run.caveats)
