"""Loader starvation: whether a data loader, timed alone, keeps up with the steps that it feeds."""

from __future__ import annotations

from traceq.analysis.loader import loader_of
from traceq.compare.result import Feeding
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.unprofiled_phases import pace_of, unprofiled_phases
from traceq.model import Run
from traceq.units import Unit, format_value

__all__ = ["feeding", "feeding_words"]

_NOTABLE_WAIT = 0.05


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


def feeding_words(feeding: Feeding) -> tuple[str, ...]:
    """Return whether steps are starved and by how much, then the throughput of both sides or an unexpected wait."""
    loader, rest = format_value(feeding.loader_ns, Unit.NS), format_value(feeding.rest_ns, Unit.NS)
    batches = feeding.batches_per_step
    data = "batch" if batches == 1 else f"{format_value(batches, Unit.MEAN)} batches"
    what = "the rest of the step" if feeding.wait_ns is not None else "the step, including any wait for data,"
    sides = f"the loader alone takes {loader} for the {data} of a step, {what} {rest}"
    if not feeding.is_starved:
        return (f"Not starved: {sides}; it could feed {_times(feeding)} as many steps.", *_unexpected_wait(feeding))
    measured = (
        "" if feeding.wait_ns is None else f" ({DATALOAD_WAIT} measured {format_value(feeding.wait_ns, Unit.NS)})"
    )
    wait = format_value(feeding.loader_ns - feeding.rest_ns, Unit.NS)
    return (f"Starved: {sides}; each step waits {wait} for data{measured}.", *_throughput(feeding))


def _times(feeding: Feeding) -> str:
    """Return `14 times`."""
    ratio = feeding.rest_ns / feeding.loader_ns
    return f"{format_value(ratio, Unit.COUNT if ratio >= 10 else Unit.MEAN)} times"


def _unexpected_wait(feeding: Feeding) -> tuple[str, ...]:
    """Return a sentence where steps wait for data although the loader keeps up."""
    if feeding.wait_ns is None or feeding.wait_ns <= _NOTABLE_WAIT * feeding.step_ns:
        return ()
    wait = format_value(feeding.wait_ns, Unit.NS)
    share = format_value(100 * feeding.wait_ns / feeding.step_ns, Unit.PERCENT)
    reason = "workers share cores with training, or batches arrive late"
    return (f"Yet each step waits {wait} ({share}) in {DATALOAD_WAIT}: {reason}.",)


def _throughput(feeding: Feeding) -> tuple[str, ...]:
    """Return samples per second of the loader and of the steps without waiting, where samples are known."""
    if not feeding.samples_per_step:
        return ()
    rates = (feeding.samples_per_step / (ns * 1e-9) for ns in (feeding.loader_ns, feeding.rest_ns))
    loader, steps = (format_value(rate, Unit.COUNT if rate >= 100 else Unit.MEAN) for rate in rates)
    return (f"The loader delivers {loader} samples/s; without waiting the job would train {steps} samples/s.",)
