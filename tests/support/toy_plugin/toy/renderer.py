"""Results as short plain lines, and runs as CSV."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from traceq import Diffs, Sheet
from traceq.frames import Frame
from traceq.plugins import RenderOptions

SUFFIX = ".tables"


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write one line for each finding: `traceq show PATH --to toy`."""
    for finding in sheet.top_findings:
        print(f"{finding.code}: {finding.ns} ns", file=file)


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write one line for each arm: `traceq diff A B --to toy`."""
    for diff in diffs.diffs:
        print(f"{diff.b_name}: {diff.comparison.verdict.name if diff.comparison else 'unknown'}", file=file)


def write_tables(frames: Iterable[Frame], folder: Path) -> None:
    """Write each table as a CSV file: `traceq export PATH --to toy`."""
    for frame in frames:
        columns = frame.to_numpy()
        with (folder / f"{frame.name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
