"""Adding a run to a store: what the product computes of it, as one number each, with its branch and commit.

Times of steps and phases are unprofiled; a trace alone has its traced step. Counts, bytes and shares are metrics of
`traceq check`, per step, on the rank with most of it, and MFU on the rank with least. What was measured can be sent to
a tracker, too.

Trackers are a run of Weights & Biases or MLflow, or OpenTelemetry metrics. Their own variables say where that is:
WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, OTEL_EXPORTER_OTLP_ENDPOINT, ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceq.analysis.registry import describe
from traceq.engines.analyze_path import SMALL, AnalyzedPath, analyze_path
from traceq.engines.rank_reader import Start
from traceq.entry_points import import_or_fault
from traceq.errors import TraceqError, UnreadableInput, UsageFault
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.frozen import frozen
from traceq.history.git import current_branch, current_commit
from traceq.history.limits import FEWEST_VALUES
from traceq.history.store import Environment, Row, append
from traceq.locations import Place, place
from traceq.model import Processes, Timings
from traceq.rules.evaluate import RankRows, analyses_for, collect_rows, integer, value_on
from traceq.rules.parse import UNITS, Measure, Rule, parse
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
    value *= 100 if rule.measure is Measure.SHARE else 1
    return Measured(name, value, UNITS[rule.measure].value, None, rank)


_ODD = re.compile(r"[^\w .:/-]")
"""Characters that MLflow refuses in a name."""
_NO_INSTRUMENT = re.compile(r"[^\w./-]")
"""Characters that OpenTelemetry refuses in a name."""
_OTLP = "opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"
"""Module and package of the exporter."""


def add_run(
    store: Place,
    path: str,
    branch: str | None,
    commit: str | None,
    *,
    start: Start,
    small: int = SMALL,
    sink: str | None = None,
) -> str:
    """Add what a run measured, and send it to a tracker if one is named; return a line that says so.

    Branch and commit are those of the recording, else of the working directory, where they are not given. Raises
    UsageFault where there are none, UnreadableInput for what is no run.
    """
    if sink is not None:
        _check_sink(sink)
    arms = measure_run(path, start=start, small=small)
    branch = branch or current_branch()
    commit = commit or arms[0].commit or current_commit()
    for what, value in (("branch", branch), ("commit", commit)):
        if not value:
            raise UsageFault(f"no {what}: neither the run nor a git repository here says it; expected --{what}")
    where = _stored_path(store, place(path))
    run_id = arms[0].run_id or f"{place(path).name}-{os.urandom(6).hex()}"
    rows = [_row(arm, each, run_id, branch, commit, where) for arm in arms for each in arm.measured]
    append(store, rows)
    if sink is not None:
        _send(sink, rows)
    return f"{store}: {len(rows)} measures of {where} at {commit[:9]} of {branch}"


def _row(arm: MeasuredArm, measured: Measured, run_id: str, branch: str, commit: str, path: str) -> Row:
    low, high = measured.interval or (None, None)
    return Row(
        run_id=run_id,
        time=arm.time,
        branch=branch,
        commit=commit,
        arm=arm.arm,
        path=path,
        measure=measured.measure,
        rank=measured.rank,
        value=measured.value,
        low=low,
        high=high,
        unit=measured.unit,
        **arm.environment,
    )


def _stored_path(store: Place, run: Place) -> str:
    """Return the path of a run, relative to the store if it is inside: a store with its runs can be moved."""
    if not isinstance(run, Path):
        return str(run)
    path = Path(os.path.abspath(run))
    folder = Path(os.path.abspath(store)) if isinstance(store, Path) else path
    return path.relative_to(folder).as_posix() if folder in path.parents else str(path)


def _check_sink(sink: str) -> None:
    """Raise UsageFault for an unknown tracker, or one whose package is missing."""
    if sink not in _SINKS:
        raise UsageFault(f"--to {sink}: no such tracker; choose from {', '.join(_SINKS)}")
    import_or_fault(*(_OTLP if sink == "otlp" else (sink,)))


def _send(sink: str, rows: Sequence[Row]) -> None:
    """Send the rows of a run to a tracker. Raises TraceqError if it fails."""
    has_arms = len({row.arm for row in rows}) > 1
    metrics = {(f"{row.arm}/" if has_arms else "") + _name(row): _value(row) for row in rows}
    facts = {name: str(getattr(rows[0], name)) for name in ("branch", "commit", *Environment.__annotations__)}
    _SINKS[sink](rows[0].run_id, metrics, facts)


def _name(row: Row) -> str:
    units = {"ns": " ms", "percent": " percent"}
    return _ODD.sub("_", f"{row.measure}{units.get(row.unit, '')}")


def _value(row: Row) -> float:
    return row.value / 1e6 if row.unit == "ns" else row.value


def _wandb(name: str, metrics: Mapping[str, float], facts: Mapping[str, str]) -> None:
    wandb = import_or_fault("wandb")
    settings = wandb.Settings(silent=True, console="off")
    try:
        with wandb.init(name=name, config=dict(facts), settings=settings) as run:
            run.log(dict(metrics))
    except wandb.Error as fault:
        raise TraceqError(f"wandb: {fault}") from fault


def _mlflow(name: str, metrics: Mapping[str, float], facts: Mapping[str, str]) -> None:
    mlflow = import_or_fault("mlflow")
    try:
        with mlflow.start_run(run_name=name):
            mlflow.set_tags(dict(facts))
            mlflow.log_metrics(dict(metrics))
    except mlflow.MlflowException as fault:
        raise TraceqError(f"mlflow: {fault}") from fault


def _otlp(name: str, metrics: Mapping[str, float], facts: Mapping[str, str]) -> None:
    exporter = import_or_fault(f"{_OTLP[0]}.metric_exporter", _OTLP[1])
    sdk, export = (import_or_fault(f"opentelemetry.sdk.{name}") for name in ("metrics", "metrics.export"))
    resource = import_or_fault("opentelemetry.sdk.resources").Resource.create(
        {
            "service.name": "traceq",
            "service.instance.id": name,
            **{f"traceq.{key}": value for key, value in facts.items()},
        }
    )
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader], resource)
    for key, value in metrics.items():
        provider.get_meter("traceq").create_gauge(f"traceq.{_NO_INSTRUMENT.sub('_', key)}").set(value)
    outcome = exporter.OTLPMetricExporter().export(reader.get_metrics_data())
    provider.shutdown()
    if outcome is not export.MetricExportResult.SUCCESS:
        raise TraceqError("otlp: the collector did not take the metrics (OTEL_EXPORTER_OTLP_ENDPOINT)")


_SINKS = {"wandb": _wandb, "mlflow": _mlflow, "otlp": _otlp}
"""What sends to a tracker, by its name."""
