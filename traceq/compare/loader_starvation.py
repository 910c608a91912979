"""Loader starvation: whether a data loader, timed alone, keeps up with the steps that it feeds."""

from __future__ import annotations

from traceq.analysis.loader import loader_of
from traceq.claims.claim import Measure
from traceq.compare.limits import NAMED
from traceq.compare.result import Feeding
from traceq.compare.statement import Statement, state
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.unprofiled_phases import pace_of, unprofiled_phases
from traceq.model import Run

__all__ = ["feeding", "feeding_answer"]


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
