"""What `open` and `export` write: one run with its findings, or two with their comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from traceq.analysis.registry import sheet
from traceq.claims.claim import Claim
from traceq.compare.diff import diff_runs
from traceq.compare.result import Diff
from traceq.errors import UsageFault
from traceq.frozen import frozen
from traceq.locations import place
from traceq.model import Caveat, Run
from traceq.renderers import find_renderer
from traceq.runs.read import read, with_traces


@frozen
class OneRun:
    """A run and what was concluded about it."""

    run: Run
    findings: tuple[Claim, ...]
    caveats: tuple[Caveat, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Files that were read."""
        return tuple(trace.path for trace in self.run.traces)

    def write(self, renderer: str, file: BinaryIO) -> None:
        """Write it with a renderer. Raises UsageFault where no renderer of that name writes runs."""
        find_renderer(renderer, "run")(self.run, self.findings, file)


@frozen
class RunPair:
    """Two runs and their comparison, which has a rank that was traced on both sides."""

    a: Run
    b: Run
    diff: Diff

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Doubts about the comparison."""
        return self.diff.caveats

    @property
    def files(self) -> tuple[str, ...]:
        """Files that were read."""
        return tuple(trace.path for run in (self.a, self.b) for trace in run.traces)

    def write(self, renderer: str, file: BinaryIO) -> None:
        """Write it with a renderer. Raises UsageFault where no renderer of that name writes pairs of runs."""
        find_renderer(renderer, "pair")(self.a, self.b, self.diff, file)


def read_subject(path: str, other: str | None, ranks: set[int] | None) -> OneRun | RunPair:
    """Return the run at one path, or the pair at two. Raises UnreadableInput, UsageFault."""
    run = with_traces(read(path, ranks=ranks))
    if other is None:
        reports = sheet(run)
        return OneRun(run, reports.findings, reports.all_caveats)
    pair = RunPair(run, b := with_traces(read(other, ranks=ranks)), diff_runs(run, b))
    if pair.diff.traced is None:
        raise UsageFault(f"{path} and {other}: no rank was traced on both sides, so there is no pair to show")
    return pair


def export_name(path: str, other: str | None, suffix: str) -> str:
    """Return the name of what is written: `trace.json.gz` -> `trace` and the suffix; for a pair both names.

    A run or arm has the name of its folder.
    """
    names = []
    for where in map(place, filter(None, (path, other))):
        name = os.path.basename(os.path.realpath(where)) if isinstance(where, Path) else where.name
        for ending in (".gz", ".zst", ".json"):
            name = name.removesuffix(ending)
        names.append(name)
    return "-against-".join(name for name in reversed(names) if name) + suffix
