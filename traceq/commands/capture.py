"""`traceq capture`: trace some steps of a run that is being watched."""

from __future__ import annotations

from pathlib import Path

import typer

from traceq.long_runs.limits import MAX_TRACED_STEPS
from traceq.long_runs.run_watch import capture_now


def command(
    run: Path = typer.Argument(..., metavar="RUN", help="The folder of a run that traceq watch is watching."),
    steps: int = typer.Option(3, "--steps", min=1, max=MAX_TRACED_STEPS, help="Profiled steps on each rank."),
    within_s: float = typer.Option(120.0, "--within", metavar="SECONDS", help="How long to wait for them."),
) -> None:
    """Trace some steps of a run that is watched, on all of its ranks at the same step."""
    folder = capture_now(run, steps, within_s)
    typer.echo(f"traceq show {folder}")
