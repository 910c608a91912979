"""Data loaders of a diff: the line that makes the batches, and whether one that is timed alone keeps up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceq.analysis.loader import loader_of
from traceq.claims.claim import Measure
from traceq.claims.limits import MOST
from traceq.compare.labels import LOADER
from traceq.compare.limits import NAMED, PHASE
from traceq.compare.result import Cause, Feeding
from traceq.compare.side import Side
from traceq.compare.statement import Statement, state
from traceq.facts.ranks.loading_workers import worker_line
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.main_lines import loading_line
from traceq.facts.timeline.unprofiled_phases import pace_of, unprofiled_phases
from traceq.model import Run, Trace


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


def feeding(a: Run, b: Run) -> Feeding | None:
    """Return the loader's time per step and the step time, each on the slowest rank.

    None unless one of the two runs timed a loader alone and the other one steps.
    """
    loaders = [loader_of(run.manifest, run.arm, run.timings) for run in (a, b)]
    loader, of_steps = (loaders[0], b) if loaders[0] else (loaders[1], a)
    if loader is None or all(loaders) or of_steps.timings is None:
        return None
    pace = pace_of(of_steps.manifest, of_steps.arm, of_steps.timings)
    phases = unprofiled_phases(of_steps.timings)
    waits = [phase.of(pace.slowest).mean for phase in phases if phase.name == DATALOAD_WAIT]
    num_batches = 1.0
    if pace.samples and loader.samples:
        num_batches = pace.samples / len(pace.ranks_ns) / (loader.samples / len(loader.rates))
    return Feeding(
        loader_ns=round(num_batches * loader.batch_ns),
        step_ns=round(pace.step_ns),
        wait_ns=round(waits[0]) if waits else None,
        batches_per_step=num_batches,
        samples_per_step=pace.samples,
    )


def feeding_answer(feeding: Feeding) -> Statement:
    """Return whether steps are starved and by how much, with the throughput of both sides or an unexpected wait."""
    batches, loader_ns = feeding.batches_per_step, feeding.loader_ns
    measures: dict[str, Measure | None] = {
        "loader_ns": loader_ns,
        "rest_ns": None if feeding.wait_ns is None else feeding.rest_ns,
        "step_ns": feeding.step_ns if feeding.wait_ns is None else None,
        "per_step_mean": None if batches == 1 else batches,
    }
    if feeding.is_starved:
        rates = (feeding.samples_per_step * 1e9 / ns for ns in (loader_ns, feeding.rest_ns))
        loaded, trained = rates if feeding.samples_per_step else (None, None)
        starved_ns = loader_ns - feeding.rest_ns
        more = {"wait_ns": feeding.wait_ns, "loaded_rate": loaded, "trained_rate": trained}
        return state("starved", starved_ns=starved_ns, **measures, **more)
    feeds_ratio, wait_ns = feeding.rest_ns / loader_ns, feeding.wait_ns
    if wait_ns is None or wait_ns <= NAMED * feeding.step_ns:
        return state("not_starved", feeds_ratio=feeds_ratio, **measures)
    wait_pct = 100 * wait_ns / feeding.step_ns
    return state("not_starved", feeds_ratio=feeds_ratio, **measures, wait_ns=wait_ns, wait_pct=wait_pct)
