"""A loader alone against the steps that it has to feed: can it keep up?"""

from __future__ import annotations

from collections.abc import Iterator

from traceq.analysis.loader import loader_of
from traceq.compare.result import Feeding
from traceq.facts.timeline.unprofiled_phases import pace_of, unprofiled_phases
from traceq.model import Caveat, Run
from traceq.units import Unit, format_value

__all__ = ["feeding", "feeding_doubts", "feeding_words"]

WAIT = "dataload_wait"
_SETTINGS = ("size", "batch_size", "num_workers", "prefetch_factor", "load_us")
_TELLING = 0.05


def feeding(a: Run, b: Run) -> Feeding | None:
    """What the loader takes for a step, and what the step takes, on the slowest rank of either; None unless just one of
    the two recorded a loader alone, and the other one steps.
    """
    loaders = [loader_of(run.manifest, run.arm, run.timings) for run in (a, b)]
    loader, of_steps = (loaders[0], b) if loaders[0] else (loaders[1], a)
    if loader is None or all(loaders) or of_steps.timings is None:
        return None
    pace = pace_of(of_steps.manifest, of_steps.arm, of_steps.timings)
    waits = [phase.of(pace.slowest).mean for phase in unprofiled_phases(of_steps.timings) if phase.name == WAIT]
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


def feeding_words(found: Feeding) -> tuple[str, ...]:
    """Whether steps are starved, of how much, and what both could do without the other."""
    loader, rest = format_value(found.loader_ns, Unit.NS), format_value(found.rest_ns, Unit.NS)
    batches = found.batches_per_step
    data = "batch" if batches == 1 else f"{format_value(batches, Unit.MEAN)} batches"
    what = "the rest of the step" if found.wait_ns is not None else "the step, with whatever it waits for data,"
    sides = f"for the {data} of a step the loader alone takes {loader}, and {what} {rest}"
    if not found.is_starved:
        return (f"Not starved: {sides}: it could feed {_times(found)} as many steps.", *_waits_nevertheless(found))
    measured = "" if found.wait_ns is None else f" ({WAIT} measured {format_value(found.wait_ns, Unit.NS)})"
    lacking = format_value(found.loader_ns - found.rest_ns, Unit.NS)
    return (f"Starved: {sides}: so each step waits {lacking} for data{measured}.", *_paces(found))


def feeding_doubts(a: Run, b: Run) -> Iterator[Caveat]:
    """Settings of the loader in which the two recordings differ."""
    ours, theirs = (run.manifest.parameters if run.manifest else {} for run in (a, b))
    for key in _SETTINGS:
        if key in ours and key in theirs and ours[key] != theirs[key]:
            text = (
                f"{key}: {ours[key]} against {theirs[key]}: the loader was recorded with other settings than the steps"
            )
            yield Caveat("other_loader", text)


def _times(found: Feeding) -> str:
    """`14 times`."""
    ratio = found.rest_ns / found.loader_ns
    return f"{format_value(ratio, Unit.COUNT if ratio >= 10 else Unit.MEAN)} times"


def _waits_nevertheless(found: Feeding) -> tuple[str, ...]:
    """A step that waits for data though the loader could keep up."""
    if found.wait_ns is None or found.wait_ns <= _TELLING * found.step_ns:
        return ()
    wait, share = format_value(found.wait_ns, Unit.NS), format_value(100 * found.wait_ns / found.step_ns, Unit.PERCENT)
    return (f"Yet it waits {wait} ({share}) in {WAIT}: workers share cores with training, or batches come late.",)


def _paces(found: Feeding) -> tuple[str, ...]:
    """Samples a second, where they are known."""
    if not found.samples_per_step:
        return ()
    fed, trained = (found.samples_per_step / (ns * 1e-9) for ns in (found.loader_ns, found.rest_ns))
    rates = [format_value(rate, Unit.COUNT if rate >= 100 else Unit.MEAN) for rate in (fed, trained)]
    return (f"The loader feeds {rates[0]} samples/s; without waiting the job would train on {rates[1]}.",)
