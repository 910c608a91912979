"""`traceq record -- COMMAND`: record a job unedited, and print what its changes cost."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from traceq.errors import TraceqError

if TYPE_CHECKING:
    from traceq.recorder.job_launch import JobOptions
    from traceq.runs.run_folder import RunFolder

__all__ = ["record_job"]


def record_job(options: JobOptions) -> None:
    """Run the job, then print the verdicts on stderr, as stdout is the job's own. Exits with the job's exit code.

    The code is 1 for a job that ended well without a complete recording.
    """
    from traceq.recorder.job_launch import launch_job

    def say(line: str) -> None:
        typer.echo(line, err=True)

    result = launch_job(options, say)
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
