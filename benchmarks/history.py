"""Simulate histories, to measure how often `traceq history` names a change that is none, and how soon one that is.

    python benchmarks/history.py [--series FILE ...] [--runs 2000]

Each run is looked at when it is added, as CI does: a place that is named for the first time is an alarm, a false one if
nothing was changed within two runs of it. A run has its step, whose noise from run to run is autocorrelated, and the
interval of its own steps. `drift` is of the machine, in percent per 100 runs; `busy` is the share of runs that other
programs of the machine make 5 to 50 % slower, four in five of which show it by a wide interval. A step of 3 % or 10 %
is added at run 30 of 50. FILE holds a list of numbers, such as tests/tigerbeetle_test.py of apache/otava, public runs
with a drop at its 16th run, rises at its 72nd and from its 98th on, and one run far below the others, its 11th.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from traceq.history.events import Change, Series, change_points
from traceq.history.limits import FEWEST_RUNS
from traceq.history.store import Row
from traceq.units import Unit

STEP_NS = 40_000_000
LENGTH, STEPPED, SEEN = 100, 30, 20
"""Runs of a history without a change; of one with it those before, and those after."""
HALF_WIDTH = 0.004
"""Of a run's interval, as a share of its step."""
NEAR = 2
NUM_STEPPED = 60


@dataclass(frozen=True)
class Machine:
    """Noise from run to run in percent, its autocorrelation, drift in percent per 100 runs, share of busy runs."""

    name: str
    noise_pct: float
    correlation: float = 0.5
    drift_pct: float = 0.0
    busy: float = 0.0

    def history(self, rng: np.random.Generator, num: int, change: float = 0.0) -> list[Row]:
        """Return runs of one measure; the step is `change` longer from run STEPPED on."""
        noise = rng.normal(size=num)
        for index in range(1, num):
            noise[index] = self.correlation * noise[index - 1] + np.sqrt(1 - self.correlation**2) * noise[index]
        factor = 1 + self.noise_pct / 100 * noise + self.drift_pct / 100 * np.arange(num) / 100
        factor += change * (np.arange(num) >= STEPPED)
        slower = (rng.random(num) < self.busy) * rng.uniform(0.05, 0.5, num)
        half_width = HALF_WIDTH * rng.uniform(0.7, 1.4, num) + slower * (rng.random(num) < 0.8)
        return rows_of(STEP_NS * (factor + slower), STEP_NS * half_width)


MACHINES = (
    Machine("a quiet machine", 0.5, 0.0),
    Machine("1 % of noise", 1.0, 0.0),
    Machine("1 %, autocorrelated", 1.0),
    Machine("and drift of 1 %", 1.0, drift_pct=1.0),
    Machine("and drift of 5 %", 1.0, drift_pct=5.0),
    Machine("and 2 % of runs busy", 1.0, busy=0.02),
    Machine("and 10 % of runs busy", 1.0, busy=0.1),
    Machine("2 %, autocorrelated", 2.0),
)


def main() -> None:
    """Print a row for each machine, then the changes of each series."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", nargs="*", type=Path, default=[], metavar="FILE")
    parser.add_argument("--runs", type=int, default=2000, help="of each machine without a change")
    options = parser.parse_args()
    titles = ("machine", "false of 1,000 runs", "3 % found", "after", "10 % found", "after")
    table = Table(*titles, box=None)
    for machine in MACHINES:
        rng = np.random.default_rng(1)
        num = max(options.runs // LENGTH, 1)
        false = sum(len(alarms(machine.history(rng, LENGTH))) for _ in range(num))
        cells = [f"{1000 * false / (num * LENGTH):.1f}"]
        for change in (0.03, 0.1):
            delays = [delay for _ in range(NUM_STEPPED) if (delay := found_after(machine, rng, change)) is not None]
            share = f"{100 * len(delays) / NUM_STEPPED:.0f} %"
            cells += [share, f"{np.median(delays):.0f}" if delays else ""]
        table.add_row(machine.name, *cells)
    Console().print(table)
    for file in options.series:
        values = np.array(numbers_in(file))
        changes = changes_of(rows_of(values, np.full(len(values), np.nan)), Unit.NUMBER)
        listed = ", ".join(f"{change.place + 1} ({change.delta_pct:+.1f} %)" for change in changes)
        Console().print(f"{file.name}: of {len(values)} runs these change: {listed}", soft_wrap=True)


def rows_of(values: NDArray[np.float64], half_widths: NDArray[np.float64]) -> list[Row]:
    """Return a row per run; no interval where its width is nan."""
    begin = datetime(2026, 1, 1)
    return [
        Row(
            run_id=str(number),
            time=begin + timedelta(days=number),
            branch="main",
            commit="",
            arm="",
            path="",
            measure="step",
            rank=None,
            value=float(value),
            low=None if np.isnan(half) else float(value - half),
            high=None if np.isnan(half) else float(value + half),
            unit="ns",
        )
        for number, (value, half) in enumerate(zip(values, half_widths, strict=True))
    ]


def changes_of(rows: list[Row], unit: Unit = Unit.NS) -> tuple[Change, ...]:
    """Return the changes of a series."""
    step = float(np.median([row.value for row in rows]))
    return change_points(Series("", "step", unit, tuple(rows), tuple(range(len(rows)))), step)


def alarms(rows: list[Row]) -> list[tuple[int, int]]:
    """Return (place, runs when it was first named) of each alarm, if a history is looked at after each run."""
    named: list[tuple[int, int]] = []
    for num in range(FEWEST_RUNS, len(rows) + 1):
        for change in changes_of(rows[:num]):
            if all(abs(change.place - place) > NEAR for place, _ in named):
                named.append((change.place, num))
    return named


def found_after(machine: Machine, rng: np.random.Generator, change: float) -> int | None:
    """Return how many runs with the change there were when it was named; None if it was not."""
    for place, num in alarms(machine.history(rng, STEPPED + SEEN, change)):
        if abs(place - STEPPED) <= NEAR and num > STEPPED:
            return num - STEPPED
    return None


def numbers_in(file: Path) -> list[float]:
    """Return the longest list of numbers in a file."""
    lists = re.findall(r"\[[\d.,\s]+\]", file.read_text())
    return [float(each) for each in re.findall(r"[\d.]+", max(lists, key=len))]


if __name__ == "__main__":
    main()
