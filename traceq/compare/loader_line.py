"""The line that makes the batches, of a data loader for which one side waits longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceq.claims.limits import MOST
from traceq.compare.labels import LOADER
from traceq.compare.limits import PHASE
from traceq.compare.result import Cause
from traceq.compare.side import Side
from traceq.compare.statement import Statement, state
from traceq.facts.ranks.loading_workers import worker_line
from traceq.facts.timeline.loading_line import loading_line
from traceq.model import Trace

__all__ = ["loader_workers", "with_loader_line"]


def with_loader_line(causes: tuple[Cause, ...], a: Trace, b: Trace) -> tuple[Cause, ...]:
    """Return the causes; the data loader's with the line of the side that waits longer, if its main thread loads."""
    return tuple(_at_line(cause, b if cause.delta_ns > 0 else a) if _is_loader(cause) else cause for cause in causes)


def loader_workers(a: Side, b: Side, causes: Sequence[Cause]) -> Iterator[Statement]:
    """Yield in which function the workers of a loader are that is a notable cause and has no line of its own."""
    loader = next((cause for cause in causes if _is_loader(cause)), None)
    if loader is None or loader.share_pct is None or abs(loader.share_pct) < 100 * PHASE:
        return
    slower, name = (b, "b") if loader.delta_ns > 0 else (a, "a")
    if workers := worker_line(slower.ranks.job):
        yield state("loader_workers", side=name, workers=workers)


def _is_loader(cause: Cause) -> bool:
    return cause.name == LOADER.name and not cause.line


def _at_line(cause: Cause, trace: Trace) -> Cause:
    loading = loading_line(trace)
    return cause if loading is None or loading.share_pct < 100 * MOST else replace(cause, line=loading.line)
