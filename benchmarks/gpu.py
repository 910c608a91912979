"""Compare traceq's estimates with measurements of recordings on a GPU.

    python benchmarks/gpu.py OUT

OUT is a folder of `benchmarks/gpu.sh`. Prints three tables over every comparison of every run in it: the cost of added
or removed syncs by replay, beside the measured unprofiled difference; how much longer a profiled step is than an
unprofiled one; and the smallest difference that as many pairs would have called material.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from traceq.analysis.registry import analyze
from traceq.compare.diff import diff_run
from traceq.compare.result import Diff
from traceq.errors import TraceqError
from traceq.model import Run
from traceq.runs.read import read
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_lines
from traceq.stats import Comparison
from traceq.units import Unit, format_value


@dataclass(frozen=True, slots=True)
class Measured:
    """A comparison of a run that has an interval."""

    run: Path
    difference: Diff
    comparison: Comparison

    @property
    def name(self) -> str:
        """Name such as `outlier_ab: on against off`."""
        return f"{self.run.name}: {self.difference.b_name} against {self.difference.a_name}"


def main() -> None:
    """Print the tables."""
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/gpu.py OUT")
    comparisons = list(_measured(Path(sys.argv[1]) / "runs"))
    if not comparisons:
        sys.exit(f"{sys.argv[1]}: no run with a comparison")
    console = Console(width=140)
    for table in (_replay(comparisons), _perturbation(comparisons), _limits(comparisons)):
        console.print(table)


def _measured(runs: Path) -> Iterator[Measured]:
    for run in sorted(path.parent for path in runs.glob("*/run.json")):
        try:
            diffs = diff_run(run).diffs
        except TraceqError as fault:
            sys.stderr.write(f"{run.name}: {fault}\n")
            continue
        for difference in diffs:
            if difference.comparison is not None and difference.comparison.ci95_ns is not None:
                yield Measured(run, difference, difference.comparison)


def _replay(comparisons: list[Measured]) -> Table:
    table = Table(
        "comparison", "syncs added", "by replay", "measured", "95 % from", "to", title="Syncs: estimate and truth"
    )
    for one in comparisons:
        changed = [cause for cause in one.difference.causes if cause.kind == "sync" and cause.delta_num]
        if not changed:
            continue
        names = one.difference.b_name, one.difference.a_name
        costs = [_replayed_ns(read(one.run / name), {cause.key for cause in changed}) for name in names]
        table.add_row(
            one.name,
            f"{sum(cause.delta_num for cause in changed):+g}",
            _delta(costs[0] - costs[1]),
            *_interval(one.comparison),
        )
    return table


def _replayed_ns(run: Run, keys: set[str]) -> int:
    """Return the sum of the replayed costs of these syncs per step, in ns, on the rank where it is largest."""
    (table,) = [table for table in analyze(run, "syncs").tables if table.key == "syncs"]
    key, rank, cost = (
        next(index for index, column in enumerate(table.columns) if column.key == name)
        for name in ("key", "rank", "replay_ns")
    )
    by_rank: dict[int, int] = {}
    for row in table.rows:
        if row[key] in keys:
            by_rank[int(row[rank] or 0)] = by_rank.get(int(row[rank] or 0), 0) + int(row[cost] or 0)
    return max(by_rank.values(), default=0)


def _perturbation(comparisons: list[Measured]) -> Table:
    table = Table("arm", "unprofiled", "profiled", "longer by", title="Profiler overhead per step")
    seen = set()
    for one in comparisons:
        traced = one.difference.traced
        if traced is None:
            continue
        sides = (
            (one.difference.a_name, one.comparison.a_ns, traced.a_ns),
            (one.difference.b_name, one.comparison.b_ns, traced.b_ns),
        )
        for arm, unprofiled, profiled in sides:
            if (one.run, arm) in seen:
                continue
            seen.add((one.run, arm))
            longer = format_value(100 * (profiled - unprofiled) / unprofiled, Unit.DELTA_PERCENT)
            times = (format_value(ns, Unit.NS) for ns in (unprofiled, profiled))
            table.add_row(f"{one.run.name}: {arm}", *times, longer)
    return table


def _limits(comparisons: list[Measured]) -> Table:
    table = Table(
        "comparison", "step", "pairs", "timed for", "half of the interval", "of a step", title="Detection limit"
    )
    for one in comparisons:
        comparison = one.comparison
        low, high = comparison.ci95_ns or (0, 0)
        half = (high - low) / 2
        pairs = comparison.num_pairs or min(comparison.num_a, comparison.num_b)
        table.add_row(
            one.name,
            format_value(comparison.a_ns, Unit.NS),
            str(pairs),
            format_value(_timed_ns(one), Unit.NS),
            format_value(half, Unit.NS),
            format_value(100 * half / comparison.a_ns, Unit.PERCENT),
        )
    return table


def _timed_ns(one: Measured) -> int:
    """Return the wall time in ns of the steps of this comparison's pairs on rank 0, both halves."""
    names = one.difference.a_name, one.difference.b_name
    lines = read_lines(RunFolder(one.run).samples(0))
    return sum(line.wall_ns for line in lines if isinstance(line, StepLine) and (line.a, line.b) == names)


def _interval(comparison: Comparison) -> tuple[str, str, str]:
    low, high = comparison.ci95_ns or (0, 0)
    return _delta(comparison.delta_ns), _delta(low), _delta(high)


def _delta(ns: float) -> str:
    return format_value(ns, Unit.DELTA_NS)


if __name__ == "__main__":
    main()
