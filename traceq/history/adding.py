"""Adding a run to a store with its branch and commit, and sending what was measured to a tracker.

Trackers are a run of Weights & Biases or MLflow, or OpenTelemetry metrics. Their own variables say where that is:
WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, OTEL_EXPORTER_OTLP_ENDPOINT, ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from traceq.engines.analyze_path import SMALL
from traceq.engines.rank_reader import Start
from traceq.entry_points import import_or_fault
from traceq.errors import TraceqError, UsageFault
from traceq.history.git import current_branch, current_commit
from traceq.history.measures import Measured, MeasuredArm, measure_run
from traceq.history.store import Environment, Row, append
from traceq.locations import Place, place

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
