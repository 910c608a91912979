"""Measure how often recordings on this machine detect a known stall, and how often they report one that is not there.

    python benchmarks/record.py [--recordings 50] [--steps 128] [--ranks 1] [--stall-pct 3]

Each recording times two arms of `outlier_ab` that differ by a busy wait of known length, and A against itself: its A/A
control. So one recording gives two verdicts with known truths. Recordings run one after another in separate processes;
nothing is traced.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

import traceq
from traceq.compare.diff import diff_run
from traceq.stats import Comparison, VerdictName, compare_pairs
from traceq.stats.verdict import VERDICT_TEXTS
from traceq.units import Unit, format_value

VERDICTS: tuple[VerdictName, ...] = tuple(VERDICT_TEXTS)


@dataclass(frozen=True, slots=True)
class Recording:
    """Comparisons of one recording: the A/A control, the stall, and the stall by CPU time."""

    control: Comparison
    stall: Comparison
    stall_on_cpu: Comparison


def main() -> None:
    """Record, and print one table."""
    options, console = _options(), Console(width=140)
    with TemporaryDirectory(prefix="traceq-") as folder:
        step_ns = _record(Path(folder) / "step", options, stall_us=100).control.a_ns
        stall_us = max(1, round(step_ns * options.stall_pct / 100 / 1000))
        console.print(f"a step takes {format_value(step_ns, Unit.NS)}; {options.stall_pct:g} % of it are {stall_us} us")
        recordings = []
        for index in range(options.recordings):
            recordings.append(_record(Path(folder) / str(index), options, stall_us))
            console.print(f"{index + 1:3}  {_line(recordings[-1])}", highlight=False)
    console.print(_table(recordings, 1000 * stall_us))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=50)
    parser.add_argument("--steps", type=int, default=128, help="measured steps of each arm")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stall-pct", type=float, default=3.0, help="length of the stall in percent of a step")
    return parser.parse_args()


def _record(out: Path, options: argparse.Namespace, stall_us: int) -> Recording:
    command = [
        *(sys.executable, "-m", "traceq", "record", "--recipe", "outlier_ab", "--device", "cpu", "--out", str(out)),
        *("--ranks", str(options.ranks), "--steps", str(options.steps), "--trace-steps", "0"),
        *("--set", "num_workers=0", "--vary", f"stall_us=0,{stall_us}"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    control = next(pairs for pairs in traceq.read(out).pairs if pairs.is_control)
    stall = diff_run(out).diffs[0]
    assert stall.comparison is not None
    assert stall.cpu is not None
    return Recording(compare_pairs(control), stall.comparison, stall.cpu)


def _line(recording: Recording) -> str:
    comparisons = (recording.control, recording.stall, recording.stall_on_cpu)
    return "   ".join(f"{format_value(one.delta_ns, Unit.DELTA_NS):>9} {one.verdict.name}" for one in comparisons)


def _table(recordings: Sequence[Recording], stall_ns: int) -> Table:
    columns = ("truth", *VERDICTS, "interval contains truth", "half-width, median", "pairs needed, median")
    title = f"{len(recordings)} recordings of {recordings[0].stall.num_pairs} pairs"
    table = Table(title=title, title_justify="left")
    table.add_column("compared")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_row("A/A control", *_row([recording.control for recording in recordings], 0))
    table.add_row("stall", *_row([recording.stall for recording in recordings], stall_ns))
    table.add_row("stall, CPU time", *_row([recording.stall_on_cpu for recording in recordings], stall_ns))
    return table


def _row(comparisons: Sequence[Comparison], truth_ns: int) -> list[str]:
    names = Counter(one.verdict.name for one in comparisons)
    intervals = [one.ci95_ns for one in comparisons if one.ci95_ns is not None]
    covered = sum(low <= truth_ns <= high for low, high in intervals)
    half = np.median([(high - low) / 2 for low, high in intervals])
    needed = [one.verdict.pairs_needed for one in comparisons if one.verdict.pairs_needed is not None]
    return [
        format_value(truth_ns, Unit.NS),
        *(str(names[name]) for name in VERDICTS),
        f"{covered} of {len(comparisons)}",
        format_value(float(half), Unit.NS),
        f"{np.median(needed):,.0f} ({len(needed)})" if needed else "",
    ]


if __name__ == "__main__":
    main()
