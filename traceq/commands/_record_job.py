"""`traceq record -- COMMAND`: record a job unedited, and print what its changes cost."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from traceq.errors import TraceqError, UsageFault

if TYPE_CHECKING:
    from traceq.recorder.job_launch import JobOptions
    from traceq.runs.run_folder import RunFolder

__all__ = ["check_job_options", "record_job"]

_REPLICATES = 4  # the fewest that give an interval


def check_job_options(**options: object) -> None:
    """Raise UsageFault for options that only recipes have."""
    for name, value in options.items():
        if value:
            raise UsageFault(f"--{name}: only for --recipe; a job is recorded as its command starts it")


def record_job(options: JobOptions, arms: Sequence[str] = (), replicates: int | None = None) -> None:
    """Run the job, then print the verdicts on stderr, as stdout is the job's own. Exits with the job's exit code.

    The code is 1 for a job that ended well without a complete recording. `arms`: the job runs several times, in each
    arm `replicates` times.
    """
    from traceq.recorder.job_arms_launch import launch_job_arms
    from traceq.recorder.job_launch import launch_job

    def say(line: str) -> None:
        typer.echo(line, err=True)

    if arms and (options.toggles or options.tries_all or options.is_dry):
        raise UsageFault("--arm: an arm with processes of its own; not together with --toggle, --try or --dry-run")
    result = launch_job_arms(options, arms, replicates or _REPLICATES, say) if arms else launch_job(options, say)
    if result.fault:
        say(f"traceq: {result.folder.path}: {result.fault}")
        raise typer.Exit(result.exit_code or 1)
    if not options.is_dry:
        _print_answers(result.folder, say)
    raise typer.Exit(result.exit_code)


def _print_answers(folder: RunFolder, say: Callable[[str], None]) -> None:
    """Print the verdict of each arm, and the commands that say more."""
    manifest = folder.read_manifest()
    if len(manifest.arms) > 1:
        for line in _verdicts(folder):
            say(line)
        say(shlex.join(["traceq", "diff", str(folder.path)]))
    arm = manifest.arms[-1].name
    if folder.trace(arm, 0).is_file():
        say(shlex.join(["traceq", "show", str(folder.path / arm)]))


def _verdicts(folder: RunFolder) -> Iterator[str]:
    """Yield one line per arm, what saves most first, and why arms have no verdict."""
    from traceq.library import diff

    try:
        diffs = diff(str(folder.path)).diffs
    except TraceqError as fault:
        yield f"traceq: {fault}"
        return
    ranked = sorted(diffs, key=lambda each: each.comparison.delta_ns if each.comparison else 0)
    yield from (each.words[0] for each in ranked)
    yield from dict.fromkeys(
        f"traceq: note: {caveat.text}" for each in diffs for caveat in each.caveats if caveat.code == "arm_ended"
    )
