"""`traceq improve -- COMMAND`: what would make a job faster, predicted, then tried while it trains."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

import msgspec
import typer

from traceq.commands._output import print_table
from traceq.commands._record_job import ranked_diffs, sheet_of_run
from traceq.errors import RecordingFailed, TraceqError, UsageFault
from traceq.improve.candidates import Candidate, candidates, fitting, leads_left
from traceq.improve.limits import LEAST_PAIRS, LEAST_S, OTHER_STEPS, SURVEY_STEPS, TRIAL_SHARE
from traceq.improve.outcome import Outcome, Trial, leads_of, not_tried, promising, together_trial, trials_of
from traceq.improve.sentences import LINES
from traceq.locations import Most, read_whole, without_secrets
from traceq.model import Timings
from traceq.recorder.job_launch import JobOptions, launch_job
from traceq.recorder.jobs.injection import Improves, ToggleRequest, parse_toggle
from traceq.runs.read import read_timing
from traceq.runs.run_folder import RunFolder, to_json_bytes


def command(
    job: list[str] = typer.Argument(
        metavar="-- COMMAND", help="The training job: python train.py ..., torchrun ...", show_default=False
    ),
    minutes: float = typer.Option(5.0, "--minutes", min=0.5, help="How long all of it may take, about."),
    toggles: list[str] = typer.Option(
        [], "--toggle", metavar="NAME=A,B", help="Also try these values: main.config.metrics_every=1,10, ..."
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The run of the job as it is; others beside it.", show_default="traceq-runs/JOB-TIME"
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a run that is in --out."),
) -> None:
    """Try what would make a training job faster: its leads first, then every toggle that applies.

    The job starts three times: as it is; with remedies that take turns while it trains; with all that gain, together.
    """
    began_s, given = monotonic(), [parse_toggle(text) for text in toggles]
    options = JobOptions(tuple(job), steps=SURVEY_STEPS, out=out, overwrite=overwrite, improves="survey")
    _say(LINES["survey"])
    folder, fault = _launched(options)
    if fault:
        raise RecordingFailed(f"{folder.path}: {fault}")
    outcome, fault = _improved(options, folder, given, minutes, began_s)
    folder.improvement.write_bytes(msgspec.json.format(to_json_bytes(outcome), indent=1))
    print_table(outcome.table, err=True)
    for line in outcome.lines():
        _say(line)
    if fault:
        raise RecordingFailed(fault)


def _improved(
    options: JobOptions, folder: RunFolder, given: Sequence[ToggleRequest], minutes: float, began_s: float
) -> tuple[Outcome, str]:
    """Try what applies to the job of this run; return what came of it, and why a later part is not complete, or ""."""
    sheet, timings = sheet_of_run(folder), _timings(folder)
    step_ns = float(timings.step_ns.mean(axis=1).max())  # of the slowest rank
    phases_ns = dict(zip(timings.phases, map(int, timings.phase_ns.mean(axis=(0, 1))), strict=True))
    traced = sheet.source.traced.mean_ns / step_ns if sheet.source.traced else 1.0
    values = _applicable(folder, given)
    trial_s, together_s = _seconds(minutes, monotonic() - began_s, step_ns)
    most_arms = _most_arms(trial_s, step_ns, steps_per_half=8 if timings.by_device else 2)
    every = candidates(values, sheet.top_findings, round(step_ns), phases_ns, traced)
    tried, hopeless, late = fitting(every, step_ns, most_arms)
    trials: tuple[Trial, ...] = ()
    together, fault = None, ""
    if tried:
        _say(LINES["trial"].format(num=len(tried), minutes=trial_s / 60))
        beside, fault = _launched(_beside(options, folder, "trial", _texts(values, tried), trial_s))
        if beside.manifest_path.exists():
            trials = trials_of(tried, ranked_diffs(beside, _say), beside.read_manifest(), _source(_script(options)))
    afresh = promising(trials)
    if afresh and not fault:
        _say(LINES["fresh_start"].format(minutes=together_s / 60))
        beside, fault = _launched(_beside(options, folder, "together", _texts(values, afresh), together_s))
        if beside.manifest_path.exists():
            together = together_trial(next(iter(ranked_diffs(beside, _say)), None))
    outcome = Outcome(
        command=without_secrets(shlex.join(options.command)),
        script=_script(options),
        step_ns=round(step_ns),
        trials=(*trials, *not_tried(late, "no_time"), *not_tried(hopeless, "hopeless")),
        afresh=afresh,
        together=together,
        minutes=(monotonic() - began_s) / 60,
    )
    left = leads_left(sheet.leads, {each.toggle for each in outcome.gaining})
    return replace(outcome, leads=leads_of(left, traced)), fault


def _texts(values: Mapping[str, Sequence[str]], chosen: Sequence[Candidate | Trial]) -> tuple[str, ...]:
    """Return `--toggle` of these values of toggles, each after the job's own one."""
    names = dict.fromkeys(each.toggle for each in chosen)
    of_toggle = {name: (values[name][0], *(each.value for each in chosen if each.toggle == name)) for name in names}
    return tuple(f"{name}={','.join(each)}" for name, each in of_toggle.items())


def _launched(options: JobOptions) -> tuple[RunFolder, str]:
    """Record the job; return the run, and why it is not complete, or ""."""
    result = launch_job(options, _say)
    if result.is_elsewhere:
        raise UsageFault(LINES["one_node"])
    return result.folder, result.fault


def _beside(options: JobOptions, folder: RunFolder, part: Improves, texts: Sequence[str], seconds: float) -> JobOptions:
    """Return the options of a later part, whose run lies beside that of the job as it is."""
    out = folder.path.with_name(f"{folder.path.name}-{part}")
    return replace(options, toggles=tuple(texts), steps=None, max_minutes=seconds / 60, improves=part, out=out)


def _timings(folder: RunFolder) -> Timings:
    timings = read_timing(str(folder.path)).timings
    assert timings is not None, "a complete recording has timed its steps"
    return timings


def _applicable(folder: RunFolder, given: Sequence[ToggleRequest]) -> dict[str, tuple[str, ...]]:
    """Return the values of all toggles that apply, by name, the job's own first, and those that were given."""
    toggles = msgspec.json.decode(read_whole(folder.toggles, Most.STATUS), type=list[ToggleRequest])
    return {toggle.name: toggle.values for toggle in (*toggles, *given)}


def _seconds(minutes: float, past_s: float, step_ns: float) -> tuple[float, float]:
    """Return how long trials and their confirmation may be timed; the job starts twice more, as long as it took."""
    start_s = max(past_s - 1e-9 * step_ns * (SURVEY_STEPS + OTHER_STEPS), 0.0)
    left_s = 60 * minutes - past_s - 2 * start_s
    if left_s < 2 * LEAST_S:
        _say(LINES["no_time"].format(start_s=start_s, minutes=minutes))
    return max(TRIAL_SHARE * left_s, LEAST_S), max((1 - TRIAL_SHARE) * left_s, LEAST_S)


def _most_arms(seconds: float, step_ns: float, steps_per_half: int) -> int:
    """Return how many arms have time for enough pairs, at least one, beside the control."""
    steps = LEAST_PAIRS * (2 * steps_per_half + 1) + OTHER_STEPS
    return max(int(seconds / (1e-9 * step_ns * steps)) - 1, 1)


def _script(options: JobOptions) -> str:
    """Return the path of the script in the command; "" where it names none."""
    return next((word for word in options.command if word.endswith(".py")), "")


def _source(script: str) -> str:
    """Return the text of a script; "" where it cannot be read."""
    try:
        return read_whole(Path(script), Most.SOURCE).decode() if script else ""
    except (TraceqError, OSError, ValueError):
        return ""


def _say(line: str) -> None:
    typer.echo(line, err=True)
