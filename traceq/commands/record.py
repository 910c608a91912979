"""`traceq record`: run an experiment on every rank and write a run folder."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import typer

from traceq.analysis.registry import analyze_all
from traceq.commands._output import print_table, shown_progress
from traceq.commands._record_job import check_job_options, record_job
from traceq.errors import RecordingFailed, TraceqError, UsageFault
from traceq.model import Arm
from traceq.recorder.job_launch import JobOptions
from traceq.recorder.jobs.injection import DEFAULT_GRACE_S
from traceq.recorder.process.environment_variables import is_launched
from traceq.recorder.spec.plan import DEFAULT_HANG_S, Plan
from traceq.recorder.spec.prepare import DEFAULT_MINUTES, DEFAULT_TRACE_STEPS, Request, prepare
from traceq.runs.read import read_timing
from traceq.runs.run_folder import RUNS

PROFILES = ("step_profile", "loader")
"""Analyses of a recording of one arm."""
OF_ARMS = ("arms", "batches")
"""Analyses of arms that ran in processes of their own."""


class Until(StrEnum):
    """Condition that ends the timing."""

    decided = "decided"


class Then(StrEnum):
    """What a job does when its recording is complete."""

    stop = "stop"
    go_on = "continue"


class Device(StrEnum):
    """Device on which ranks compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def command(
    job: list[str] | None = typer.Argument(
        None,
        metavar="-- COMMAND",
        help="A training job to record as it is: python train.py ..., torchrun ...",
        show_default=False,
    ),
    recipe: str = typer.Option("", "--recipe", help="Name of a recipe, or a FILE.py that holds one."),
    toggles: list[str] = typer.Option(
        [],
        "--toggle",
        metavar="NAME=A,B",
        help="What differs between the arms of a job: main.config.threshold=0,10, @optimizer=foreach,fused, ...",
    ),
    job_arms: list[str] = typer.Option(
        [],
        "--arm",
        metavar="NAME=WORDS",
        help="An arm of a job in processes of its own: these words take the place of {arm} in the command.",
    ),
    batch_arg: str = typer.Option(
        "",
        "--batch-arg",
        metavar="WORDS",
        help="Find the largest batch of a job that fits: {} in these words is the batch; they take the place of {arm}.",
    ),
    is_dry: bool = typer.Option(False, "--dry-run", help="Say what is found in a job, and stop it after ten steps."),
    then: Then = typer.Option(
        Then.stop, "--then", help="What a job does when its recording is complete: stop as by Ctrl-C, or train on."
    ),
    grace_s: float | None = typer.Option(
        None,
        "--grace",
        metavar="SECONDS",
        help="How long a job that stops may take to end before its processes are killed; 0: kill at once.",
        show_default="30",
    ),
    ranks: int | None = typer.Option(None, "--ranks", help="Number of ranks.", show_default="all GPUs, or 2 on a CPU"),
    steps: int | None = typer.Option(
        None,
        "--steps",
        help="Unprofiled steps of each arm and comparison, rounded up to 16 (CUDA: 128); 0 only traces.",
        show_default="128, on CUDA 256, or the recipe's; 200, from 8 ranks 400, of a job's only arm on several",
    ),
    until: Until | None = typer.Option(
        None, "--until", help="Instead of --steps: time until each arm's difference is material or in the noise."
    ),
    max_minutes: float | None = typer.Option(
        None, "--max-minutes", help="With --until: longest time.", show_default="10"
    ),
    trace_steps: int | None = typer.Option(
        None, "--trace-steps", help="Profiled steps of each arm; 0 only times.", show_default="3"
    ),
    changes: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Set a parameter of the recipe."),
    vary: list[str] = typer.Option([], "--vary", metavar="KEY=A,B", help="Make an arm of each value."),
    replicates: int | None = typer.Option(
        None,
        "--replicates",
        help="Processes of each arm, where arms cannot share one; 4 give a verdict.",
        show_default="1, on CUDA 4",
    ),
    device: Device = typer.Option(Device.auto, "--device", help="Where the ranks compute."),
    hang_s: float | None = typer.Option(
        None,
        "--hang-after",
        metavar="SECONDS",
        help="Say where ranks stand that make no progress for as long, and end those that traceq started; 0: never.",
        show_default="30",
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The run's folder.", show_default="traceq-runs/RECIPE-TIME"
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace a run that is in --out; else the new one is in a folder beside it, OUT-2."
    ),
) -> None:
    """Record a training job as it is, or a recipe: unprofiled timing first, then a short profiled window of each arm.

    Arms alternate in one process, in shuffled pairs; the baseline also runs against itself, which shows the noise.
    Before that each arm runs 20 steps to warm up, fewer when fewer are measured. Arms that cannot share a process run
    apart, in short processes one after another.

    traceq record -- python train.py

    traceq record --toggle main.config.threshold=0,10 -- torchrun --nproc-per-node 8 train.py

    traceq record --recipe outlier_ab --set stall_us=2000
    """
    if job:
        check_job_options(
            recipe,
            ranks=ranks,
            set=changes,
            vary=vary,
            replicates=None if job_arms or batch_arg else replicates,
        )
        default_minutes = DEFAULT_MINUTES if until else 0.0
        if max_minutes is not None and not default_minutes:
            raise UsageFault(f"--max-minutes {max_minutes:g}: requires --until decided, without --steps")
        options = JobOptions(
            command=tuple(job),
            toggles=tuple(toggles),
            steps=steps,
            max_minutes=max_minutes or default_minutes,
            trace_steps=(0 if batch_arg else DEFAULT_TRACE_STEPS) if trace_steps is None else trace_steps,
            stops=then is Then.stop,
            grace_s=DEFAULT_GRACE_S if grace_s is None else grace_s,
            is_dry=is_dry,
            of_loader=bool(recipe),
            out=out,
            hang_s=DEFAULT_HANG_S if hang_s is None else hang_s,
            overwrite=overwrite,
        )
        record_job(options, job_arms, batch_arg, replicates)
        return
    if toggles or job_arms or batch_arg or is_dry or not recipe:
        raise UsageFault("expected the command of a job after --, or --recipe NAME")
    _record_recipe(
        Request(
            recipe=recipe,
            ranks=ranks,
            steps=steps,
            until_decided=until is Until.decided,
            max_minutes=max_minutes,
            trace_steps=trace_steps,
            changes=tuple(changes),
            vary=tuple(vary),
            device=device.value,
            out=out,
            replicates=replicates,
            hang_s=hang_s,
            overwrite=overwrite,
        )
    )


def _record_recipe(request: Request) -> None:
    """Record the recipe, then print where its step's time goes and the commands that say more."""
    joins = is_launched()
    entry, _, planned = request.check()
    if joins and entry.recipe.runs_apart(each.arm for each in planned):
        raise UsageFault(
            f"--recipe {request.recipe}: each arm needs separate processes, and those of torchrun, accelerate launch "
            "or srun cannot be started again; run traceq record without them: it starts the ranks itself"
        )
    plan = _join(request) if joins else _launch(request)
    if plan is None:
        return
    _print_profile(plan)
    arms = plan.folder.read_manifest().arms
    for line in _next_commands(plan, [arm for arm in arms if not arm.status]):
        typer.echo(line)
    _report_ended_arms([arm for arm in arms if arm.status], may_run_out=entry.recipe.next_arms is not None)


def _join(request: Request) -> Plan | None:
    """Record as one of the ranks that torchrun, accelerate or srun started; rank 0 prints the summary."""
    from traceq.recorder.rank_recording import record_joined

    with _named_disk(str(request.out or RUNS)):
        return record_joined(request)


def _launch(request: Request) -> Plan:
    """Record with ranks that are started here."""
    from traceq.recorder.launch import launch

    plan, entry = prepare(request)
    ranks = "rank" if plan.num_ranks == 1 else "ranks"
    typer.echo(f"recording {entry.name} on {plan.num_ranks} {plan.device.upper()} {ranks} into {plan.out}", err=True)
    for arm in plan.marked:
        typer.echo(f"traceq: note: arm {arm.name}: {arm.failure}", err=True)
    if plan.warning:
        typer.echo(f"traceq: note: {plan.warning}", err=True)
    start = time.monotonic()
    try:
        with _named_disk(tempfile.gettempdir()), shown_progress() as (on_progress, on_news):
            launch(plan, entry.recipe, on_progress, on_news)
    except (KeyboardInterrupt, SystemExit):  # the latter after any other signal that ends a process
        typer.echo(f"interrupted; {plan.out} keeps what was measured", err=True)
        raise
    typer.echo(f"recorded in {time.monotonic() - start:.0f} s", err=True)
    return plan


def _print_profile(plan: Plan) -> None:
    """Print where an unprofiled step's time goes, of a single arm, or the results of arms that ran apart.

    Arms of one process are compared by the commands that follow.
    """
    if not plan.steps or (len(plan.arms) > 1 and not plan.replicates):
        return
    for report in analyze_all(read_timing(plan.out), OF_ARMS if plan.replicates else PROFILES):
        for view in report.views:
            print_table(view.non_empty_columns)
            typer.echo()


@contextmanager
def _named_disk(where: str) -> Iterator[None]:
    """Turn an OSError into a TraceqError with a path: `where` if the system names none."""
    try:
        yield
    except OSError as fault:
        raise TraceqError(f"{fault.filename or where}: {fault.strerror or fault}") from fault


def _report_ended_arms(ended: Sequence[Arm], *, may_run_out: bool) -> None:
    """Print which arms ended early. Raises RecordingFailed for one out of memory, unless `may_run_out`."""
    for arm in ended:
        typer.echo(f"traceq: note: arm {arm.name}: {arm.failure}", err=True)
    out = [arm.name for arm in ended if arm.status == "out of memory"]
    if out and not may_run_out:
        raise RecordingFailed(f"out of memory in {', '.join(out)}; the other arms are complete")


def _next_commands(plan: Plan, arms: Sequence[Arm]) -> list[str]:
    """Return the commands that a user would type next, ready to be copied."""
    folder = plan.folder
    baseline = next((arm.name for arm in arms if arm.baseline), "")
    other = next((arm.name for arm in arms if arm.timed and not arm.baseline), baseline)
    can_diff = baseline and other != baseline
    commands: list[tuple[str, ...]] = [("diff", plan.out)] if can_diff else []
    if plan.trace_steps and can_diff:
        commands.append(("diff", str(folder.trace(baseline, 0)), str(folder.trace(other, 0))))
    if plan.trace_steps:
        commands += [("show", str(folder.path / other)), ("open", str(folder.path / other))]
    return [shlex.join(["traceq", *words]) for words in commands]
