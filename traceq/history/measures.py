"""Measures of a run: what the product computes of it, as one number each, with the rank that has it.

Times of steps and phases are unprofiled; a trace alone has its traced step. Counts, bytes and shares are metrics of
`traceq check`, per step, on the rank with most of it, and MFU on the rank with least.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from traceq.analysis.registry import describe
from traceq.engines.analyze_path import SMALL, AnalyzedPath, analyze_path
from traceq.engines.rank_reader import Start
from traceq.errors import TraceqError, UnreadableInput
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.frozen import frozen
from traceq.history.limits import FEWEST_VALUES
from traceq.history.store import Environment
from traceq.locations import Place, place
from traceq.model import Processes, Timings
from traceq.rules.collect_rows import RankRows, analyses_for, collect_rows, integer
from traceq.rules.evaluate import value_on
from traceq.rules.metrics import Measure
from traceq.rules.parse import Rule, parse
from traceq.runs.run_folder import is_run, read_manifest
from traceq.stats.means import BLOCK, interval_of_mean

_RULES = tuple(
    map(
        parse,
        (
            *(f"{kind} per step >= 0" for kind in SYNC_KINDS),
            *(f"{name} per step >= 0{unit}" for name in COLLECTIVE_NAMES[:-1] for unit in ("", " B")),
            *("kernels per step >= 0", "exposed_comm >= 0 ns", "step >= 0 ns", "mfu >= 0 %"),
        ),
    )
)
"""Rules that always hold, whose values are measures."""
_HOST = "host"
"""The analysis of the host's ops, and its table."""
_NAMES = {"step": "traced step", "exposed_comm": "exposed comm", **{kind: f"{kind} syncs" for kind in SYNC_KINDS}}
"""Names of measures where those of the metrics would not do without their rule."""
_UNITS = {Measure.COUNT: "mean", Measure.BYTES: "bytes", Measure.NS: "ns", Measure.SHARE: "percent"}
"""Units of `traceq.units`, by what a rule compares with."""


@frozen
class Measured:
    """One number: `value` in a `unit` of `traceq.units`, its 95 % interval where there is one, the rank it is of."""

    measure: str
    value: float
    unit: str
    interval: tuple[float, float] | None = None
    rank: int | None = None


@frozen
class MeasuredArm:
    """An arm of a run, or a trace: when it began, what was measured, and where, by the fields of a row."""

    run_id: str
    arm: str
    time: datetime
    commit: str
    measured: tuple[Measured, ...]
    environment: Environment


def measure_run(path: str | Place, *, start: Start, small: int = SMALL) -> tuple[MeasuredArm, ...]:
    """Return what was measured of each timed arm of a run, of one arm, or of a trace.

    Raises UnreadableInput, also where nothing was measured.
    """
    where = place(path)
    names = [arm.name for arm in read_manifest(where).arms if arm.timed and not arm.status] if is_run(where) else []
    arms = tuple(_measured_arm(each, start, small) for each in ([where / name for name in names] or [where]))
    if not any(arm.measured for arm in arms):
        raise UnreadableInput(str(where), "neither unprofiled steps nor traced ones", "a run with either")
    return arms


def _measured_arm(where: Place, start: Start, small: int) -> MeasuredArm:
    analyzed = analyze_path(where, (*analyses_for(_RULES), _HOST), start=start, small=small)
    run, manifest = analyzed.run, analyzed.run.manifest
    facts = manifest.facts_for(run.arm) if manifest else {}
    source = describe(run, analyzed.job.ranks)
    num, size = len(source.ranks), source.world_size
    if where.is_dir() and 0 < num < size:
        raise UnreadableInput(str(where), f"traces of {num} of its {size} ranks", "all of them")
    processes = next((each for each in run.processes if each.arm == run.arm), None)
    unprofiled = (*_unprofiled(run.timings, processes), *_cpu(facts.get("step_cpu_ns")))
    traced = _traced(analyzed) if analyzed.job.ranks else ()
    replaced = {"traced step"} if unprofiled else set()
    return MeasuredArm(
        run_id=manifest.run_id if manifest else "",
        arm=run.arm,
        time=_time(manifest.started if manifest else ""),
        commit=str(facts.get("git", "")),
        measured=(*unprofiled, *(each for each in traced if each.measure not in replaced)),
        environment={
            "device": str(facts.get("device_name", source.device or facts.get("device", ""))),
            "torch": source.torch,
            "driver": str(facts.get("driver", "")),
            "clock_mhz": int(clock) if isinstance(clock := facts.get("sm_mhz"), int | float) else 0,
            "host": str(facts.get("host", "")),
            "cpu": str(facts.get("cpu", "")),
            "num_ranks": size,
        },
    )


def _time(started: str) -> datetime:
    """Return the begin of a recording in UTC; now for what does not say."""
    try:
        return datetime.fromisoformat(started).astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return datetime.now(UTC).replace(tzinfo=None)


def _unprofiled(timings: Timings | None, processes: Processes | None) -> Iterator[Measured]:
    """Yield the step of the job, its phases, and its peak of memory."""
    if processes is not None:
        yield _typical("step", processes.median_ns.astype(np.float64), None)
        if (peak := int(processes.peak_bytes.max())) > 0:
            yield Measured("peak memory", peak, "bytes")
    if timings is None:
        return
    if processes is None:
        yield _of_steps("step", timings.step_ns)
    yield from (_of_steps(phase.name, phase.ns) for phase in unprofiled_phases(timings))
    peaks = timings.peak_allocated if timings.peak_allocated.any() else timings.peak_process
    if processes is None and peaks.any():
        yield Measured("peak memory", int(peaks.max()), "bytes", rank=int(peaks.argmax()))


def _of_steps(name: str, ns: NDArray[np.int64]) -> Measured:
    """Return the typical step, each as long as on its slowest rank; `ns` int64[R, S]."""
    job = ns.max(axis=0).astype(np.float64)
    num = len(job) // BLOCK
    blocks = np.median(job[: num * BLOCK].reshape(num, BLOCK), axis=1) if num >= FEWEST_VALUES else job[:0]
    return _typical(name, job, int(ns.mean(axis=1).argmax()), blocks)


def _typical(
    name: str, values: NDArray[np.float64], rank: int | None, blocks: NDArray[np.float64] | None = None
) -> Measured:
    """Return the median, with the interval that independent values have, which are `blocks` or the values."""
    typical, parts = float(np.median(values)), values if blocks is None else blocks
    if len(parts) < FEWEST_VALUES:
        return Measured(name, typical, "ns", None, rank)
    low, high = interval_of_mean(parts)
    return Measured(name, typical, "ns", (min(low, typical), max(high, typical)), rank)


def _cpu(ns: str | int | float | None) -> Iterator[Measured]:
    """Yield the CPU time of the main thread, which does not count what other programs of the machine take."""
    if isinstance(ns, int | float) and ns > 0:
        yield Measured("cpu time", float(ns), "ns")


def _traced(analyzed: AnalyzedPath) -> Iterator[Measured]:
    ranks = collect_rows(analyzed.job, analyzed.reports, _RULES)
    for rule in _RULES:
        try:
            yield _extreme(rule, ranks)
        except TraceqError:  # what this trace does not record, as a peak of a device that is not known
            continue
    if not any(each.has_device for each in ranks):
        yield _ops(analyzed, ranks)


def _ops(analyzed: AnalyzedPath, ranks: tuple[RankRows, ...]) -> Measured:
    """Return the ops of the host per step; with a device kernels say it, and calls that poll differ from run to run."""
    nums = dict.fromkeys((each.rank for each in ranks), 0)
    for row in next(report for report in analyzed.reports if report.name == _HOST).table(_HOST).to_dicts():
        nums[integer(row, "rank")] += integer(row, "num")
    value, rank = max((nums[each.rank] / len(each.windows), each.rank) for each in ranks)
    return Measured("ops", value, "mean", None, rank)


def _extreme(rule: Rule, ranks: tuple[RankRows, ...]) -> Measured:
    values = [(float(value_on(rule, each)), each.rank) for each in ranks]
    value, rank = min(values) if rule.metric == "mfu" else max(values, key=lambda each: (each[0], -each[1]))
    name = _NAMES.get(rule.metric, rule.metric) + (" bytes" if rule.measure is Measure.BYTES else "")
    return Measured(name, 100 * value if rule.measure is Measure.SHARE else value, _UNITS[rule.measure], None, rank)
