"""The sheet of a folder of recorded runs: what each asked, when, and what came of it."""

from __future__ import annotations

from traceq.compare.diff import diff_arms
from traceq.compare.result import Diff
from traceq.compare.sentences import RUNS
from traceq.compare.side import Side
from traceq.errors import TraceqError
from traceq.facts.timeline.unprofiled_phases import pace_of
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Manifest
from traceq.report import Report, Sheet, Source, Table, column
from traceq.runs.read import read_timing
from traceq.runs.run_folder import read_manifest
from traceq.runs.sides import recordings_in
from traceq.units import Unit, format_value

RUNS_SCHEMA = "traceq.runs/1"


@frozen
class RunRow:
    """A recorded run, the latest first."""

    run: str = column("run")
    started: str = column("recorded (UTC)")
    question: str = column("question")
    num_ranks: int = column("ranks", Unit.COUNT)
    status: str = column("status")
    result: str = column("result")
    """Verdict of each arm, the job's step, or why there is none."""


def runs_sheet(folder: Place) -> Sheet:
    """Return a row for each run in a folder, the latest first."""
    rows = sorted(map(_row, recordings_in(folder)), key=lambda row: row.started, reverse=True)
    table = Table.of("runs", "Runs", RunRow, rows, note=RUNS)
    source = Source(str(folder), 0, (), 0, f"{len(rows)} recorded runs", "")
    return Sheet(source, (Report("runs", (table,), (table,)),), schema=RUNS_SCHEMA, is_selectable=False)


def _row(run: Place) -> RunRow:
    try:
        manifest = read_manifest(run)
    except TraceqError as fault:
        return RunRow(run.name, "", "", 0, "unreadable", str(fault))
    started = manifest.started.replace("T", " ").removesuffix("Z")
    return RunRow(run.name, started, _question(manifest), manifest.num_ranks, manifest.status, _result(run, manifest))


def _question(manifest: Manifest) -> str:
    """Return what the run was recorded for: its own words, its recipe, or the arms that it compares."""
    arms = [arm for arm in manifest.arms if arm.timed]
    compared = " or ".join(arm.name for arm in arms) if len(arms) > 1 else manifest.arms[0].meaning
    return manifest.question or manifest.recipe or compared


def _result(run: Place, manifest: Manifest) -> str:
    if manifest.fault:
        return manifest.fault
    try:
        if sum(arm.timed for arm in manifest.arms) > 1:
            diffs = diff_arms(str(run), [Side.of(read_timing(run / arm.name)) for arm in manifest.arms]).diffs
            return "; ".join(map(_verdict, diffs))
        timings = read_timing(run / manifest.baseline).timings
    except TraceqError as fault:
        return str(fault)
    if timings is None:
        return "no unprofiled steps"
    return f"a step takes {format_value(pace_of(manifest, manifest.baseline, timings).step_ns, Unit.NS)}"


def _verdict(diff: Diff) -> str:
    """Return `on +1.20 ms (+3.1 %): material`."""
    if diff.comparison is None:
        return diff.answer.lead
    delta = format_value(diff.comparison.delta_ns, Unit.DELTA_NS)
    share = format_value(diff.comparison.delta_pct, Unit.DELTA_PERCENT)
    return f"{diff.b_name} {delta} ({share}): {diff.comparison.verdict.text}"
