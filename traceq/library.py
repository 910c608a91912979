"""What `import traceq` offers: analyses and comparisons of anything that can be read.

These functions work in the caller's process and leave it as it is: no processes, threads, signal handlers or settings
stay behind.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import overload

from traceq.analysis.registry import describe_analyses
from traceq.analysis.registry import sheet as sheet_of_run
from traceq.compare.diff import diff as diff_pair
from traceq.compare.diff import diff_run
from traceq.compare.result import Diff, Diffs
from traceq.engines.analyze_path import PathReader, sheet_of
from traceq.engines.rank_reader import SameProcess
from traceq.errors import UsageFault
from traceq.locations import as_printed, place
from traceq.model import Run
from traceq.report import Report, Sheet
from traceq.runs.memory_snapshot import is_memory_snapshot
from traceq.runs.run_folder import is_run
from traceq.threshold import THRESHOLD_PCT


class Analyses(dict[str, str]):
    """Names of analyses with the question that each answers, listed line by line."""

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {question}" for name, question in self.items())


def analyses() -> Analyses:
    """Return the name of every analysis, in the order of a report, with the question that it answers."""
    return Analyses(describe_analyses())


@overload
def analyze(run: str | Path | Run, name: None = None) -> Sheet: ...
@overload
def analyze(run: str | Path | Run, name: str) -> Report: ...
def analyze(run: str | Path | Run, name: str | None = None) -> Sheet | Report:
    """Return the reports of all analyses of a run, or the report of one.

    `run`: what `read` returned; or a path or URL of a trace, a folder of rank traces, a recorded run, or one of its
    arms. A folder of more traces than should be in memory together is read rank by rank; summaries are kept beside
    the traces, as `traceq show` does. A path of a memory snapshot has reports of its kind (`memory_lines`). Raises
    UnreadableInput, and UsageFault where there is no analysis of that name.
    """
    names = () if name is None else (name,)
    run = run if isinstance(run, Run) else as_printed(str(run))
    if isinstance(run, Run):
        sheet = sheet_of_run(run, names)
    elif is_memory_snapshot(place(run)):
        from traceq.snapshots.show import snapshot_sheet  # most programs read no snapshot

        sheet = snapshot_sheet(run, names)
    else:
        sheet, _ = sheet_of(run, names, start=lambda: nullcontext(SameProcess()))
    return sheet if name is None else sheet.reports[0]


@overload
def diff(a: str | Path | Run, b: str | Path | Run, *, threshold_pct: float = THRESHOLD_PCT) -> Diff: ...
@overload
def diff(a: str | Path | Run, b: None = None, *, threshold_pct: float = THRESHOLD_PCT) -> Diffs: ...
def diff(
    a: str | Path | Run, b: str | Path | Run | None = None, *, threshold_pct: float = THRESHOLD_PCT
) -> Diff | Diffs:
    """Return the comparison of B with A; or, of a recorded run alone, of every other arm with its baseline.

    `a`, `b`: what `read` returned, or a path or URL of what it reads; a folder or pattern that holds several recordings
    of one thing is one side. `threshold_pct`: difference that matters, in percent of A's step. Raises UnreadableInput,
    and UsageFault where `a` alone is no recorded run of several arms.
    """
    reader = PathReader(SameProcess)
    a = as_printed(a) if isinstance(a, str) else a
    b = as_printed(b) if isinstance(b, str) else b
    if b is not None:
        return diff_pair(a, b, threshold_pct=threshold_pct, read_ranks=reader.ranks)
    path = _recording(a) if isinstance(a, Run) else a
    return diff_run(path, threshold_pct=threshold_pct, read_arm_ranks=reader.arms)


def _recording(run: Run) -> str:
    """Return the folder of the recording that a run was read from. Raises UsageFault where it is no recording."""
    path = place(run.path)
    for folder in (path, path.parent, path.parent.parent):  # a run, an arm of it, a trace of that
        if is_run(folder):
            return str(folder)
    raise UsageFault(f"{run.path}: not a recorded run; expected one, or a second run to compare it with")
