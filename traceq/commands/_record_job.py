"""`traceq record -- COMMAND`: record a job unedited, and print what its changes cost."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence

import typer

from traceq.analysis._wording import in_phase
from traceq.analysis.registry import analyze_all
from traceq.claims.claim import Claim
from traceq.claims.rules import rule_of
from traceq.claims.saying import text_of
from traceq.commands._options import engine_for
from traceq.commands._output import print_table, shown_work
from traceq.compare.result import Diff
from traceq.compare.verdict import cpu_time
from traceq.engines.analyze_path import sheet_of
from traceq.errors import TraceqError, UsageFault
from traceq.facts.timeline.phases import COMPILING
from traceq.library import diff
from traceq.locations import without_secrets
from traceq.model import WallTime
from traceq.recorder.job_launch import JobOptions, launch_job
from traceq.report import MOST_LEADS, Report, Sheet
from traceq.runs.read import read_timing
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import read_pairs
from traceq.units import Unit, format_value

LOADER_RECIPE = "dataloader"
"""The recipe that a job has, too: its own loader alone."""

_UNSTEADY = 1.1
"""Ratio of two measurements of the same step from which both are printed."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_REPLICATES = 4  # the fewest that give an interval


def check_job_options(recipe: str, **options: object) -> None:
    """Raise UsageFault for options that only recipes have, and for a recipe but that of a loader."""
    if recipe not in ("", LOADER_RECIPE):
        raise UsageFault(f"--recipe {recipe}: of recipes a job has only {LOADER_RECIPE}, its own loader alone")
    for name, value in options.items():
        if value:
            raise UsageFault(
                f"--{name.replace('_', '-')}: only for --recipe; a job is recorded as its command starts it"
            )


def record_job(
    options: JobOptions, arms: Sequence[str] = (), batch_arg: str = "", replicates: int | None = None
) -> None:
    """Run the job, then print the verdicts on stderr, as stdout is the job's own. Exits with the job's exit code.

    The code is 1 for a job that ended well without a complete recording. With `arms`, or a search for the largest batch
    (`batch_arg`), the job runs several times, in each arm `replicates` times.
    """

    def say(line: str) -> None:
        typer.echo(line, err=True)

    if (arms or batch_arg) and (options.toggles or options.is_dry or options.of_loader):
        option, others = "--arm" if arms else "--batch-arg", "--toggle, --dry-run or --recipe"
        raise UsageFault(f"{option}: an arm with processes of its own; not together with {others}")
    if arms and batch_arg:
        raise UsageFault("--batch-arg: it makes arms of its own; not together with --arm")
    if batch_arg:
        from traceq.recorder.job_arms_launch import launch_job_batches  # needs torch

        result = launch_job_batches(options, batch_arg, replicates or 1, say)
    elif arms:
        from traceq.recorder.job_arms_launch import launch_job_arms

        result = launch_job_arms(options, arms, replicates or _REPLICATES, say)
        if not result.fault and (replicates or _REPLICATES) < _REPLICATES:
            again = without_secrets(shlex.join(["traceq", *_with_replicates(sys.argv[1:])]))
            say(f"traceq: {_REPLICATES} processes of each arm give a confidence interval: {again}")
    else:
        result = launch_job(options, say)
    if result.fault:
        if not batch_arg and result.folder.manifest_path.exists():
            _print_measured(result.folder, say)
        say(f"traceq: {result.folder.path}: {result.fault}")
        raise typer.Exit(result.exit_code or 1)
    if result.is_elsewhere:
        say(f"traceq: the ranks of this command are in {result.folder.path}: the command that made it has the answer")
        raise typer.Exit(result.exit_code)
    if not options.is_dry:
        if result.exit_code:
            say(f"traceq: note: the job ended with exit code {result.exit_code}; its recording was complete before")
        if batch_arg:
            _print_tables(_reports(result.folder, "batches"))
            say(shlex.join(["traceq", "show", str(result.folder.path)]))
        else:
            _print_answers(options, result.folder, say)
    raise typer.Exit(result.exit_code)


def _with_replicates(words: Sequence[str]) -> list[str]:
    """Return the words of this command with the fewest replicates that give an interval."""
    end = words.index("--") if "--" in words else len(words)
    options, number = list(words[:end]), f"--replicates={_REPLICATES}"
    for place, word in enumerate(options):
        if word == "--replicates":
            options[place : place + 2] = [number]
        elif word.startswith("--replicates="):
            options[place] = number
    return [*options, *words[end:]]


def _print_answers(options: JobOptions, folder: RunFolder, say: Callable[[str], None]) -> None:
    """Print where the wall time went, beside arms only if much is not in regular steps; verdicts of arms, or phases.

    Then the commands that say more.
    """
    manifest, profile = folder.read_manifest(), _reports(folder, "step_profile")
    wall_time = WallTime.of(manifest.facts_for(manifest.baseline))
    if wall_time is not None and (wall_time.is_notable or len(manifest.arms) == 1):
        say(f"traceq: {wall_time.text(*_largest_phase(profile, wall_time.rank))}")
    if len(manifest.arms) > 1:
        diffs = ranked_diffs(folder, say)
        for line in (*_baseline_step(diffs), *_verdicts(diffs), *_core_lines(_core_findings(folder))):
            say(line)
        say(shlex.join(["traceq", "diff", str(folder.path)]))
    elif options.of_loader:
        _print_tables(_reports(folder, "loader"))
        path = f"{folder.path}-steps"
        say(without_secrets(shlex.join(["traceq", "record", "--out", path, "--", *options.command])))
        say(shlex.join(["traceq", "diff", str(folder.path), path]))
    else:
        _print_tables(profile)
        notes = _core_findings(folder)
        of_machine = [note for note in notes if note.severity == "low"]
        of_job = [note for note in notes if note not in of_machine]
        leads = _leads(folder)
        texts = [f"traceq: {text_of(lead)}" for lead in leads]
        for line in dict.fromkeys((*_core_lines(of_job), *texts, *_core_lines(of_machine))):
            say(line)
        if any(rule_of(lead).toggles for lead in (*of_job, *leads)):
            say(without_secrets(shlex.join(["traceq", "improve", "--", *options.command])))
    arm = manifest.arms[-1].name
    if folder.trace(arm, 0).is_file():
        say(shlex.join(["traceq", "show", str(folder.path / arm)]))


def _print_measured(folder: RunFolder, say: Callable[[str], None]) -> None:
    """Print the command that reads what was measured before a recording ended early, if that is anything.

    Nothing can read a journal whose last line is cut short, as by a full disk.
    """
    has_arms = len(folder.read_manifest().arms) > 1
    try:
        measured = read_pairs(folder.steps)
    except TraceqError:
        return
    if any(not (has_arms and pairs.is_control) for pairs in measured):
        command = "diff" if has_arms else "show"
        say(f"traceq: what was measured before it ended: {shlex.join(['traceq', command, str(folder.path)])}")


def _print_tables(reports: Sequence[Report]) -> None:
    """Print on stderr what people see of reports: where the time of steps goes, or how fast the loader is."""
    for report in reports:
        for view in report.views:
            print_table(view.non_empty_columns, err=True)


def _largest_phase(profile: Sequence[Report], rank: int) -> tuple[str, float]:
    """Return `in backward`, where most of a rank's unprofiled steps is, and its share in percent; "" without steps.

    Without compiling, which is a part of the wall time of its own.
    """
    rows = [row for report in profile for row in report.table("step_phases").to_dicts()]
    of_rank = [row for row in rows if row["rank"] == rank and row["phase"] != COMPILING]
    ns_by_phase = {str(row["phase"]): int(row["mean_ns"] or 0) for row in of_rank}
    whole_ns = sum(ns_by_phase.values())
    largest = max(ns_by_phase, key=ns_by_phase.__getitem__, default="")
    return (in_phase(largest), 100 * ns_by_phase[largest] / whole_ns) if whole_ns else ("", 0.0)


def _reports(folder: RunFolder, analysis: str) -> Sequence[Report]:
    """Return the report of an analysis of unprofiled steps; none where steps were only traced."""
    if not any(path.stat().st_size for path in folder.steps.glob("rank*.jsonl")):
        return ()
    return analyze_all(read_timing(str(folder.path)), (analysis,))


def ranked_diffs(folder: RunFolder, say: Callable[[str], None]) -> Sequence[Diff]:
    """Return the comparisons with the baseline, what saves most first; prints why there is none."""
    try:
        diffs = diff(str(folder.path)).diffs
    except TraceqError as fault:
        say(f"traceq: {fault}")
        return ()
    return sorted(diffs, key=lambda each: each.comparison.delta_ns if each.comparison else 0)


def _baseline_step(diffs: Sequence[Diff]) -> Iterator[str]:
    """Yield how long a step of the baseline takes, beside which deltas make sense, and what they are."""
    steps_ns = sorted(diff.comparison.a_ns for diff in diffs if diff.comparison and diff.comparison.num_pairs)
    if not steps_ns:
        return
    middle, ends = steps_ns[len(steps_ns) // 2], (steps_ns[0], steps_ns[-1])
    least, most = (format_value(ns, Unit.NS) for ns in ends)
    differ = f" ({least} to {most} beside the arms)" if ends[1] > _UNSTEADY * ends[0] else ""
    step = f"a step of {diffs[0].a_name} takes {format_value(middle, Unit.NS)}{differ}"
    yield f"traceq: {step}; steps and deltas are Hodges-Lehmann estimates of halves in turns, % is of that step"


def _core_findings(folder: RunFolder) -> Sequence[Claim]:
    """Return what kept threads of the baseline's step waiting for a core: workers of its loader, or other processes."""
    return [finding for report in _reports(folder, "loader") for finding in report.findings]


def _core_lines(findings: Sequence[Claim]) -> Iterator[str]:
    """Yield a note for each; one of low severity is dim."""
    for finding in findings:
        note = f"traceq: note: {text_of(finding)}"
        yield f"{_DIM}{note}{_PLAIN}" if finding.severity == "low" else note


def _leads(folder: RunFolder) -> Sequence[Claim]:
    """Return the findings that `traceq show` has first on the only arm, if steps were traced; without what was said."""
    if not any(folder.path.glob("*/rank*.json.gz")):
        return ()
    sheet = sheet_of_run(folder)
    printed = {finding.code for report in sheet.reports if report.name == "loader" for finding in report.findings}
    printed.add("wall_time")
    return [finding for finding in sheet.top_findings if finding.code not in printed][:MOST_LEADS]


def sheet_of_run(folder: RunFolder) -> Sheet:
    """Return what `traceq show` has of a run."""
    engine = engine_for(memory=None, cluster=None)
    with shown_work("analysing") as on_progress:
        sheet, _ = sheet_of(str(folder.path), start=engine.start, small=engine.small, on_progress=on_progress)
    return sheet


def _verdicts(diffs: Sequence[Diff]) -> Iterator[str]:
    """Yield a line per arm, what CPU time decides where step times do not, and why arms have no verdict."""
    for each in diffs:
        yield each.answer.lead
        if each.comparison and each.comparison.verdict.is_open and each.cpu and not each.cpu.verdict.is_open:
            yield f"  {cpu_time(each.cpu).lead}"
    yield from dict.fromkeys(
        f"traceq: note: {caveat.text}" for each in diffs for caveat in each.caveats if caveat.code == "arm_ended"
    )
