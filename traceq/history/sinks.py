"""Measures of a run for others: a run of Weights & Biases or MLflow, or OpenTelemetry metrics, with branch and commit.

Their own variables say where that is: WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, OTEL_EXPORTER_OTLP_ENDPOINT, ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from traceq.errors import TraceqError, UsageFault
from traceq.history.store import Environment, Row
from traceq.optional_packages import import_or_fault

__all__ = ["SINKS", "check_sink", "send"]

_PER_MS = 1e6
_ODD = re.compile(r"[^\w .:/-]")
"""Characters that MLflow refuses in a name."""
_NO_INSTRUMENT = re.compile(r"[^\w./-]")
"""Characters that OpenTelemetry refuses in a name."""
_OTLP = "opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"
"""Module and package of the exporter."""


def check_sink(sink: str) -> None:
    """Raise UsageFault for an unknown tracker, or one whose package is missing."""
    if sink not in SINKS:
        raise UsageFault(f"--to {sink}: no such tracker; choose from {', '.join(SINKS)}")
    import_or_fault(*(_OTLP if sink == "otlp" else (sink,)))


def send(sink: str, rows: Sequence[Row]) -> None:
    """Send the rows of a run to a tracker. Raises TraceqError if it fails."""
    has_arms = len({row.arm for row in rows}) > 1
    metrics = {(f"{row.arm}/" if has_arms else "") + _name(row): _value(row) for row in rows}
    facts = {name: str(getattr(rows[0], name)) for name in ("branch", "commit", *Environment.__annotations__)}
    SINKS[sink](rows[0].run_id, metrics, facts)


def _name(row: Row) -> str:
    units = {"ns": " ms", "percent": " percent"}
    return _ODD.sub("_", f"{row.measure}{units.get(row.unit, '')}")


def _value(row: Row) -> float:
    return row.value / _PER_MS if row.unit == "ns" else row.value


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


SINKS = {"wandb": _wandb, "mlflow": _mlflow, "otlp": _otlp}
"""What sends to a tracker, by its name."""
