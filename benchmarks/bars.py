"""Measure what traceq aims at, as ratios that hold on any machine, and say which bars hold: about three minutes.

    PYTHONPATH=tests/support python benchmarks/bars.py [--ranks 10240]

Every ratio is of measurements of one run, medians of several. `memcpy` is the rate at which numpy copies 64 MB; CPU is
user and system time. Start-up is `traceq show` of a trace of 4 MB. With --ranks also the time per rank of a job of many
small ranks beside one of 1,024.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import numpy as np
from fleet import Fleet, play
from read import cost_of, make, pack, peak_bytes
from rich.console import Console
from rich.table import Table

MB = 1_000_000
PROGRAM = "from traceq.cli import main; main()"
FEW_RANKS = 1024


@dataclass(frozen=True)
class Cost:
    """Medians of some runs of a command."""

    wall_s: float
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True)
class Bar:
    """A figure, what it should be at most or at least, and what it was measured from."""

    name: str
    value: float
    bar: float
    basis: str
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether it is what it should be."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def cost(*words: str, runs: int = 3, cores: int | None = None) -> Cost:
    """Return what a command of Python costs, its modules compiled and its files in the page cache."""
    costs = [_one(words, cores) for _ in range(runs + 1)][1:]
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def _one(words: tuple[str, ...], cores: int | None) -> tuple[float, float, float]:
    start, before = time.perf_counter(), os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, sorted(before)[:cores])
    environment = os.environ | {"TRACEQ_CACHE": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    os.sched_setaffinity(0, before)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, peak_bytes(usage) / MB


def traceq(*words: str | Path, runs: int = 3, cores: int | None = None) -> Cost:
    """Return what a command of traceq costs."""
    return cost("-c", PROGRAM, *map(str, words), runs=runs, cores=cores)


def memcpy_mb_s() -> float:
    """Return the rate at which numpy copies 64 MB, the best of twenty."""
    source = np.ones(64 * MB, np.uint8)
    target = source.copy()
    best = min(_timed_copy(target, source) for _ in range(20))
    return source.nbytes / MB / best


def _timed_copy(target: np.ndarray, source: np.ndarray) -> float:
    start = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - start


def reading(large: Path, folder: Path) -> tuple[float, list[Bar]]:
    """Return the CPU seconds of reading a trace, and the bars of reading."""
    options = argparse.Namespace(repeat=5, seconds=60)
    warm, packed = make(folder, 1, "decimal"), pack(large)
    plain = cost_of("traceq native", sys.executable, warm, large, options)
    gz = cost_of("traceq native", sys.executable, pack(warm), packed, options)
    if isinstance(plain, str) or isinstance(gz, str):
        raise SystemExit(f"not read: {plain} {gz}")
    memcpy, rate = memcpy_mb_s(), large.stat().st_size / MB / plain.cpu_s
    share = Bar("reading, % of memcpy", 100 * rate / memcpy, 12, f"{rate:,.0f} of {memcpy:,.0f} MB/s", at_least=True)
    clock = f"{gz.wall_s:.2f} s by the clock beside {plain.wall_s:.2f}"
    return plain.cpu_s, [share, Bar("gzip, x the plain file", gz.wall_s / plain.wall_s, 1, clock)]


def commands(large: Path, small: Cost, scan_s: float, folder: Path) -> Iterator[Bar]:
    """Yield the bars of `show` and `diff`."""
    other = folder / "other.json"
    shutil.copyfile(large, other)
    size_mb = large.stat().st_size / MB
    show, diff = (traceq(*words, cores=1) for words in (("show", large), ("diff", large, other)))
    beyond_s = show.cpu_s - small.cpu_s
    yield Bar("show beyond start-up, x the scan", beyond_s / scan_s, 1.8, f"{beyond_s:.2f} s of CPU, scan {scan_s:.2f}")
    yield Bar("diff of two, x show of one", diff.cpu_s / show.cpu_s, 2, f"{diff.cpu_s:.2f} s, {show.cpu_s:.2f} s")
    yield Bar("show, memory x the file", show.peak_mb / size_mb, 1, f"{show.peak_mb:,.0f} MB")
    yield Bar("diff, memory x both files", diff.peak_mb / (2 * size_mb), 1, f"{diff.peak_mb:,.0f} MB")
    both = traceq("show", large)
    yield Bar("show by the clock, s", both.wall_s, 1, f"{len(os.sched_getaffinity(0))} cores, {size_mb:.0f} MB")


def many_ranks(num: int, folder: Path) -> Iterator[Bar]:
    """Yield the bar of a job of many small ranks."""
    per_rank, peaks = [], []
    for ranks in (FEW_RANKS, num):
        job = play(Fleet(ranks, layers=1, steps=2)).write(folder / f"job{ranks}")
        shown = _one(("-c", PROGRAM, "show", str(job), "--json"), None)
        per_rank.append(1000 * shown[1] / ranks)
        peaks.append(shown[2])
        shutil.rmtree(job)
    basis = f"{per_rank[1]:.1f} and {per_rank[0]:.1f} ms of CPU; first process {peaks[1]:,.0f} and {peaks[0]:,.0f} MB"
    yield Bar(f"a rank of {num:,}, x one of {FEW_RANKS:,}", per_rank[1] / per_rank[0], 1.15, basis)


def main() -> None:
    """Print a row per bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=500, help="MB of the generated trace")
    parser.add_argument("--ranks", type=int, default=0, help="ranks of a large job; 0: none")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    options = parser.parse_args()
    large = make(options.folder, options.size, "decimal")
    small = traceq("show", make(options.folder, 4, "decimal"), runs=7)
    scan_s, bars = reading(large, options.folder)
    with TemporaryDirectory(dir=options.folder) as made:
        bars += commands(large, small, scan_s, Path(made))
        bars += many_ranks(options.ranks, Path(made)) if options.ranks else ()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "is", "bar", "holds", "from"):
        table.add_column(title, justify="right" if title in ("is", "bar") else "left")
    for bar in bars:
        sign = ">=" if bar.at_least else "<="
        table.add_row(bar.name, f"{bar.value:.3g}", f"{sign} {bar.bar:.3g}", "yes" if bar.holds else "NO", bar.basis)
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    main()
