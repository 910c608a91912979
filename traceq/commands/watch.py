"""`traceq watch`: run a job and say when it becomes slower; or, from another terminal, how it is."""

from __future__ import annotations

from pathlib import Path

import typer

from traceq.commands._output import print_table
from traceq.errors import UsageFault
from traceq.long_runs.sentences import onset_text
from traceq.long_runs.status import read_status
from traceq.recorder.job_launch import JobOptions, launch_job
from traceq.recorder.spec.plan import DEFAULT_HANG_S
from traceq.runs.run_folder import to_json_bytes


def command(
    job: list[str] | None = typer.Argument(
        None, metavar="-- COMMAND", help="The training job: python train.py ..., torchrun ...", show_default=False
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The run's folder.", show_default="traceq-runs/SCRIPT-TIME"
    ),
    status: Path | None = typer.Option(
        None, "--status", metavar="RUN", help="Print how a run is that is watched, or was.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="With --status: as JSON."),
    metrics: int | None = typer.Option(
        None, "--metrics", metavar="PORT", help="Serve metrics for Prometheus on 127.0.0.1.", show_default=False
    ),
    hang_s: float | None = typer.Option(
        None,
        "--hang-after",
        metavar="SECONDS",
        help="Say where ranks stand that make no progress for as long; 0: never.",
        show_default="30",
    ),
) -> None:
    """Run a training job and say when it becomes slower, on which rank and why: every step of every rank is timed.

    At an onset three steps are traced on all ranks, to be compared with healthy ones by traceq diff.

    traceq watch -- torchrun --nproc-per-node 8 train.py

    traceq watch --status traceq-runs/train-20261130-120000
    """
    if (status is None) == (not job):
        raise UsageFault("expected the command of a job after --, or --status RUN")
    if status is not None:
        _print_status(status, as_json=as_json)
        return
    options = JobOptions(
        command=tuple(job or ()),
        stops=False,
        is_watched=True,
        metrics_port=metrics,
        out=out,
        hang_s=DEFAULT_HANG_S if hang_s is None else hang_s,
    )
    result = launch_job(options, lambda line: typer.echo(line, err=True))
    if result.fault:
        typer.echo(f"traceq: {result.folder.path}: {result.fault}", err=True)
    raise typer.Exit(result.exit_code or bool(result.fault))


def _print_status(path: Path, *, as_json: bool) -> None:
    status = read_status(path)
    if as_json:
        typer.echo(to_json_bytes(status).decode())
        return
    print_table(status.table)
    for onset in status.onsets:
        typer.echo(f"\n{onset_text(onset)}")
